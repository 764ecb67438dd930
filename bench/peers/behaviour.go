package main

import (
	"fmt"
	"io"
	"strings"
)

// scenario is one question, and what each contestant did about it.
type scenario struct {
	name string
	ask  func() []outcome
	none string // who has no such feature
}

// outcome is what one contestant did.
type outcome struct {
	who  string
	what fmt.Stringer
}

func scenarios() []scenario {
	return []scenario{
		{"the half-open probe panics", func() []outcome { return probes(panics) }, "aegis sre (no half-open state)"},
		{"the half-open probe calls runtime.Goexit", func() []outcome { return probes(exits) }, "aegis sre (no half-open state)"},
		{"10 callers cancel their own calls; the breaker opens at 3 failures", cancellations, "aegis sre (the caller's code marks successes and failures)"},
		{"30 hedges win; are the losers failures of the dependency?", losers, "gobreaker, aegis (no hedging)"},
		{"1,000 calls one after the other fail, 3 attempts each, a retry budget of 10 %", budgets, "backoff, retry-go, go-retry, go-retryablehttp"},
		{"10 s to wait before the retry, 200 ms until the deadline", longWaits, ""},
		{"HTTP: a 503 with Retry-After: 3600, 300 ms until the deadline", longRetryAfter, "gobreaker, retry-go, go-retry, aegis"},
		{"HTTP: 20 requests, each answered by two 503 and a 200", supersededBodies, "gobreaker, retry-go, go-retry, aegis, backoff"},
		{"HTTP: a POST answered by a 503", posts, "gobreaker, retry-go, go-retry, aegis, backoff"},
		{"brownout: every call becomes 10 times slower; extra load by hedges", brownouts, "gobreaker, aegis and the retry libraries"},
	}
}

// behaviour prints what happened in each scenario.
func behaviour(out io.Writer, only string) error {
	fmt.Fprintf(out, "Against: %s.\n\n", strings.Join(peerVersions(), ", "))
	fmt.Fprint(out, "| scenario | contestant | what happened |\n|---|---|---|\n")
	found := false
	for _, s := range scenarios() {
		if !strings.Contains(s.name, only) {
			continue
		}
		found = true
		for _, o := range s.ask() {
			fmt.Fprintf(out, "| %s | %s | %s |\n", s.name, o.who, o.what)
		}
		if s.none != "" {
			fmt.Fprintf(out, "| %s | %s | not offered |\n", s.name, s.none)
		}
	}
	if !found {
		return fmt.Errorf("no scenario contains %q", only)
	}
	return nil
}
