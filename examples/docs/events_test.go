package docs_test

import (
	"context"
	"expvar"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/measuredgo/resilience"
)

// region slog
// logged is a listener that writes what somebody may have to look at.
func logged(log *slog.Logger) func(resilience.Event) {
	return func(e resilience.Event) {
		level := slog.LevelDebug
		switch e.Kind {
		case resilience.EventBreakerOpened, resilience.EventBreakerClosed, resilience.EventPanicked,
			resilience.EventOrphanedWork, resilience.EventSaturationDetected:
			level = slog.LevelWarn
		case resilience.EventExhausted, resilience.EventDeadlineExceeded, resilience.EventRejectedByBudget:
			level = slog.LevelInfo
		}
		log.LogAttrs(context.Background(), level, e.Kind.String(),
			slog.String("policy", e.Policy), slog.Int("attempt", e.Attempt),
			slog.Duration("took", e.Duration), slog.Duration("delay", e.Delay), slog.Any("error", e.Err))
	}
}

// endregion

// region counted
// counted is a listener that counts calls by their ending, attempts by their verdict, and everything else by its kind.
func counted(counts *expvar.Map) func(resilience.Event) {
	return func(e resilience.Event) {
		label := e.Kind.String()
		switch {
		case e.Kind.Terminal():
			label = "call " + e.Reason.String()
		case e.Kind == resilience.EventAttempt:
			label = "attempt " + e.Verdict.Kind().String()
		}
		counts.Add(e.Policy+": "+label, 1)
	}
}

// endregion

func Example_events() {
	handler := slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == "took" {
				return slog.Attr{} // another one in every run
			}
			return a
		},
	})
	counts := new(expvar.Map)
	// region listen
	policy := resilience.MustNew(
		resilience.WithName("stock"),
		resilience.WithBackoff(resilience.NoBackoff()),
		resilience.WithListener(logged(slog.New(handler))),
		resilience.WithListener(counted(counts)),
	)
	// endregion
	fails := 0
	call := func(context.Context) error {
		if fails--; fails >= 0 {
			return io.ErrUnexpectedEOF
		}
		return nil
	}
	for _, fails = range []int{0, 1, 3} {
		_ = policy.Run(context.Background(), call)
	}
	counts.Do(func(v expvar.KeyValue) { fmt.Println(v.Key, v.Value) })

	// Output:
	// level=INFO msg=exhausted policy=stock attempt=3 delay=0s error="resilience: stock: attempts exhausted after 3 attempts: unexpected EOF"
	// stock: attempt ok 2
	// stock: attempt transient 4
	// stock: call attempts exhausted 1
	// stock: call succeeded 2
	// stock: retrying 3
}
