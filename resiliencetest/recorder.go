package resiliencetest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"

	"github.com/measuredgo/resilience"
)

// Recorder remembers the events of the policies that it listens to:
//
//	var rec resiliencetest.Recorder
//	policy := resilience.MustNew(resilience.WithListener(rec.Listen))
//
// The zero Recorder is empty. It is safe for concurrent use and must not be copied once it is in use.
type Recorder struct {
	mu     sync.Mutex // guards events
	events []resilience.Event
}

// Listen is the listener. It may be called concurrently, and holds a lock only while it appends.
func (r *Recorder) Listen(e resilience.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

// Events returns a copy of what was heard so far, in order: everything, or only events of these kinds.
func (r *Recorder) Events(kinds ...resilience.EventKind) []resilience.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	events := slices.Clone(r.events)
	if len(kinds) == 0 {
		return events
	}
	return slices.DeleteFunc(events, func(e resilience.Event) bool { return !slices.Contains(kinds, e.Kind) })
}

// Reset forgets what was heard so far.
func (r *Recorder) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = nil
}

// Want fails the test unless exactly these events were heard so far, in this order; without kinds, none. The test goes on.
func (r *Recorder) Want(t testing.TB, kinds ...resilience.EventKind) {
	t.Helper()
	events := r.Events()
	for i := range max(len(events), len(kinds)) {
		switch {
		case i >= len(events):
			t.Errorf("resiliencetest: %s, the next one should be %v\n%s", plural(len(events), "event"), kinds[i], table(events, -1))
		case i >= len(kinds):
			t.Errorf("resiliencetest: event %d is %v, want no more than %d\n%s", i+1, events[i].Kind, len(kinds), table(events, i))
		case events[i].Kind != kinds[i]:
			t.Errorf("resiliencetest: event %d is %v, want %v\n%s", i+1, events[i].Kind, kinds[i], table(events, i))
		default:
			continue
		}
		return
	}
}

// Terminal fails the test unless exactly one call has ended so far, for that reason. The test goes on. It returns the event
// that ended the call, the last one if there were more, the zero Event if there was none.
func (r *Recorder) Terminal(t testing.TB, reason resilience.Reason) resilience.Event {
	t.Helper()
	events := r.Events()
	var last resilience.Event
	at, ended := -1, 0
	for i, e := range events {
		if e.Kind.Terminal() {
			last, at = e, i
			ended++
		}
	}
	switch {
	case ended != 1:
		t.Errorf("resiliencetest: %d calls have ended, want one: %v\n%s", ended, reason, table(events, at))
	case last.Reason != reason:
		t.Errorf("resiliencetest: the call ended with %q, want %q\n%s", last.Reason, reason, table(events, at))
	}
	return last
}

// String is the list of events so far, aligned: what Want and Terminal print.
func (r *Recorder) String() string { return table(r.Events(), -1) }

// table is one line for each event, with an arrow at line marked.
func table(events []resilience.Event, marked int) string {
	if len(events) == 0 {
		return "  (no events)\n"
	}
	var text bytes.Buffer
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "  #\tpolicy\tevent\tattempt\tduration\tdelay\tdetails")
	for i, e := range events {
		mark := "  "
		if i == marked {
			mark = "> "
		}
		attempt := "-"
		if e.Attempt > 0 {
			attempt = fmt.Sprint(e.Attempt)
		}
		fmt.Fprintf(w, "%s%d\t%s\t%v\t%s\t%v\t%v\t%s\n", mark, i+1, orDash(e.Policy), e.Kind, attempt, e.Duration, e.Delay, details(e))
	}
	_ = w.Flush() // a bytes.Buffer never fails
	lines := strings.Split(text.String(), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

// details is what else an event tells, on one line.
func details(e resilience.Event) string {
	var parts []string
	if e.Kind == resilience.EventAttempt {
		parts = append(parts, e.Verdict.String())
	}
	if e.Limit != 0 {
		parts = append(parts, fmt.Sprintf("limit %d", e.Limit))
	}
	if e.Err != nil {
		parts = append(parts, strings.Join(strings.Fields(e.Err.Error()), " "))
	}
	return strings.Join(parts, ": ")
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
