package main

import "testing"

func TestQuickstartRuns(*testing.T) { main() }
