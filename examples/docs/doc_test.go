// Package docs_test holds the code of the documents, so that it compiles and runs.
package docs_test

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
