// Command brownout shows what a policy does for the callers of a dependency that has a bad time.
//
// It starts real HTTP servers on loopback whose capacity, latency and errors change over time, calls them at a constant rate
// with a plain http.Client and with a policy, side by side, and prints once a second what happens. In a second act the
// process itself is starved of CPU: what does the policy learn from that, with and without WithSaturation?
//
//	go run ./examples/brownout          about 25 seconds
//	go run ./examples/brownout -short   about 5 seconds, with less to see
//
// It exits with 1 if something went wrong, also if the policy did worse than none.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/measuredgo/resilience"
)

// show is what there is to see. The first act is about the dependency, the second one about this process.
type show struct {
	cost          time.Duration // of a request, for the dependency
	patience      time.Duration // of those who wait for an answer
	step          time.Duration // from one row of the report to the next
	first, second []phase
}

var long = show{
	cost: 50 * time.Millisecond, patience: time.Second, step: time.Second,
	first: []phase{
		{name: "healthy", lasts: 3 * time.Second, workers: 15, errors: 0.01, about: "50 ms, 1% errors, room for 300 requests/s"},
		{name: "tail", lasts: 3 * time.Second, workers: 15, errors: 0.01, tail: 0.04, about: "4% of the answers take 450 ms longer"},
		{name: "brownout", lasts: 6 * time.Second, workers: 5, errors: 0.01, about: "10 of 15 workers are gone: room for 100 requests/s"},
		{name: "outage", lasts: 2 * time.Second, workers: 15, errors: 1, tail: 1, about: "every request fails, after half a second"},
		{name: "recovery", lasts: 4 * time.Second, workers: 15, errors: 0.01, about: "as healthy as at first"},
	},
	second: []phase{
		{name: "calm", lasts: 3 * time.Second, workers: 200, about: "an idle process"},
		{name: "starved", lasts: 3 * time.Second, workers: 200, busy: true, about: "goroutines burn the CPU of this process"},
		{name: "after", lasts: 2 * time.Second, workers: 200, about: "they are gone"},
	},
}

var short = show{
	cost: 50 * time.Millisecond, patience: 600 * time.Millisecond, step: 200 * time.Millisecond,
	first: []phase{
		{name: "healthy", lasts: 600 * time.Millisecond, workers: 15, errors: 0.01, about: "50 ms, 1% errors, room for 300 requests/s"},
		{name: "brownout", lasts: 2 * time.Second, workers: 5, errors: 0.01, about: "10 of 15 workers are gone: room for 100 requests/s"},
		{name: "recovery", lasts: 800 * time.Millisecond, workers: 15, errors: 0.01, about: "as healthy as at first"},
	},
	second: []phase{
		{name: "calm", lasts: 600 * time.Millisecond, workers: 200, about: "an idle process"},
		{name: "starved", lasts: 600 * time.Millisecond, workers: 200, busy: true, about: "goroutines burn the CPU of this process"},
		{name: "after", lasts: 400 * time.Millisecond, workers: 200, about: "they are gone"},
	},
}

func main() {
	quick := flag.Bool("short", false, "the same in about 5 seconds, with less to see")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	s := &long
	if *quick {
		s = &short
	}
	err := run(ctx, os.Stdout, s)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "brownout:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, s *show) error {
	goroutines := runtime.NumGoroutine()
	r := newReport(out, s)
	if err := dependency(ctx, r, s); err != nil {
		return err
	}
	if err := process(ctx, r, s); err != nil {
		return err
	}
	return leaked(goroutines)
}

// dependency is the first act.
func dependency(ctx context.Context, r *report, s *show) error {
	policy, err := newPolicy(s.patience)
	if err != nil {
		return err
	}
	plain, err := newLane(ctx, s, &s.first[0], resilience.Policy{})
	if err != nil {
		return err
	}
	guarded, err := newLane(ctx, s, &s.first[0], policy)
	if err != nil {
		return errors.Join(err, plain.stop())
	}
	r.firstAct(plain, guarded)
	err = play(ctx, r, s.first, plain, guarded)
	r.compare(plain, guarded)
	if err = errors.Join(err, plain.stop(), guarded.stop()); err != nil {
		return err
	}
	if share := summarize(plain.ended(0), &s.first[0]).share(); share < 0.9 {
		return fmt.Errorf("%w: only %s of the calls to a healthy server were answered in time", errBusy, percent(share))
	}
	if summarize(guarded.ended(0), nil).share() < summarize(plain.ended(0), nil).share() {
		return errors.New("the policy did worse than none")
	}
	return answered(plain, guarded)
}

// errBusy: what was measured says more about this machine than about policies.
var errBusy = errors.New("this machine is too busy to show anything")

// answered refuses a run that shows nothing.
func answered(lanes ...*lane) error {
	for _, l := range lanes {
		if summarize(l.ended(0), nil).answered == 0 {
			return errors.New("a lane without a single answer")
		}
	}
	return nil
}

// process is the second act. It is about what is measured: retries and the guards, which go by the outcome of the attempts
// whoever is to blame, are left out.
func process(ctx context.Context, r *report, s *show) error {
	policy, err := newPolicy(s.patience, resilience.WithAttempts(1),
		resilience.WithoutBreaker(), resilience.WithoutLimiter(), resilience.WithoutHedge())
	if err != nil {
		return err
	}
	ignorant, err := policy.With(resilience.WithoutSaturation())
	if err != nil {
		return err
	}
	with, err := newLane(ctx, s, &s.second[0], policy)
	if err != nil {
		return err
	}
	without, err := newLane(ctx, s, &s.second[0], ignorant)
	if err != nil {
		return errors.Join(err, with.stop())
	}
	r.secondAct(with, without)
	err = play(ctx, r, s.second, with, without)
	r.lesson()
	if err = errors.Join(err, with.stop(), without.stop()); err != nil {
		return err
	}
	return answered(with, without)
}

// play drives the lanes through the phases, side by side, and has every step reported.
func play(ctx context.Context, r *report, act []phase, lanes ...*lane) error {
	driving, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	for _, l := range lanes {
		running.Go(func() { l.drive(driving) })
	}
	for i := range act {
		now := &act[i]
		for _, l := range lanes {
			l.server.enter(now)
		}
		calm := func() {}
		if now.busy {
			calm = burn()
		}
		steps := time.NewTicker(r.step)
		for range now.lasts / r.step {
			select {
			case <-steps.C:
				r.row(now)
			case <-ctx.Done():
			}
		}
		steps.Stop()
		calm()
	}
	return ctx.Err()
}

// burn keeps every processor busy until it is told to stop. The scheduler takes turns of 10 ms: a goroutine that becomes
// ready waits until the four in front of it have had theirs.
func burn() (stop func()) {
	var over atomic.Bool
	var burning sync.WaitGroup
	for range 4 * runtime.GOMAXPROCS(0) {
		burning.Go(func() {
			for n := 0; !over.Load(); n++ {
			}
		})
	}
	return func() {
		over.Store(true)
		burning.Wait()
	}
}

// leaked waits for the goroutines that are on their way out.
func leaked(before int) error {
	for range 200 {
		if runtime.NumGoroutine() <= before {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	stacks := make([]byte, 1<<16)
	return fmt.Errorf("%d goroutines too many:\n%s", runtime.NumGoroutine()-before, stacks[:runtime.Stack(stacks, true)])
}
