package resiliencetest

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/measuredgo/resilience"
)

// ErrInjected is the error of an injected failure where Faults has none of its own. It is marked Transient.
var ErrInjected = resilience.Transient.Mark(errors.New("resiliencetest: injected failure"))

// Faults is what goes wrong on purpose. The zero Faults is nothing. The shares are from 0 to 1; Fail, Hang and Panic exclude
// one another, and together are at most 1.
type Faults struct {
	Fail   float64 // the share of the calls that fail in place of the callback
	Err    error   // with this error; default ErrInjected
	Status int     // of transports: with this status and an empty body, in place of an error
	Hang   float64 // the share that gets no answer until its context ends
	Panic  float64 // the share that panics with Err

	Latency time.Duration // what is added to calls, failing and good ones, before anything else happens
	Jitter  time.Duration // of which up to so much more, spread evenly
	Slow    float64       // the share of the calls that Latency is added to; default 1

	// Gate chooses the calls that Faults are for; nil: all of them. The others pass untouched. It runs on the goroutine of the
	// call, with no lock held.
	Gate func(ctx context.Context) bool
}

// Injector puts faults into calls. The zero Injector injects nothing until Set. It is safe for concurrent use and must not
// be copied.
//
// What happens to the n-th call that a gate lets in depends on Seed, n and the Faults of the moment alone: one goroutine
// sees the same faults in each run, several see the same ones in the order in which they come.
type Injector struct {
	Seed  uint64           // set it before the first call
	Clock resilience.Clock // of the latency; nil: the standard time package. Set it before the first call

	mu     sync.Mutex // guards what is beneath
	faults Faults
	counts Injected
}

// Injected counts what an Injector has done.
type Injected struct {
	Calls                  int // that faults were for; those that a gate kept out are not among them
	Slowed                 int
	Failed, Hung, Panicked int
}

// Set replaces the faults from the next call on; Set(Faults{}) ends them. Faults that make no sense panic.
func (i *Injector) Set(f Faults) {
	f.check()
	if f.Err == nil {
		f.Err = ErrInjected
	}
	if f.Slow == 0 {
		f.Slow = 1
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.faults = f
}

func (f Faults) check() {
	for _, share := range []struct {
		name  string
		value float64
	}{{"Fail", f.Fail}, {"Hang", f.Hang}, {"Panic", f.Panic}, {"Slow", f.Slow}, {"Fail + Hang + Panic", f.Fail + f.Hang + f.Panic}} {
		const rounding = 1e-9 // 0.7 + 0.2 + 0.1 may be a little more than 1
		if !(share.value >= 0 && share.value <= 1+rounding) {
			misuse("Faults.%s is %v, want 0 to 1", share.name, share.value)
		}
	}
	checkDelay("Faults.Latency", f.Latency)
	checkDelay("Faults.Jitter", f.Jitter)
	if f.Status != 0 && (f.Status < 100 || f.Status > 999) {
		misuse("Faults.Status is %d, want three digits, or 0 for an error", f.Status)
	}
}

// any reports whether there are faults at all.
func (f Faults) any() bool { return f.Fail+f.Hang+f.Panic > 0 || f.Latency+f.Jitter > 0 }

// Injected returns what was done so far.
func (i *Injector) Injected() Injected {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.counts
}

// Inject is fn with the faults of i.
func Inject[T any](i *Injector, fn func(ctx context.Context) (T, error)) func(ctx context.Context) (T, error) {
	if i == nil || fn == nil {
		misuse("Inject without an injector or without a function")
	}
	return func(ctx context.Context) (T, error) {
		if f := i.strike(ctx); f.err != nil {
			var zero T
			return zero, f.err
		}
		return fn(ctx)
	}
}

// Run is fn with the faults of i: Inject for Policy.Run.
func (i *Injector) Run(fn func(ctx context.Context) error) func(ctx context.Context) error {
	if fn == nil {
		misuse("the function of Injector.Run is nil")
	}
	return func(ctx context.Context) error {
		if f := i.strike(ctx); f.err != nil {
			return f.err
		}
		return fn(ctx)
	}
}

// RoundTripper is base with the faults of i; nil: http.DefaultTransport. The gate gets the context of the request.
func (i *Injector) RoundTripper(base http.RoundTripper) http.RoundTripper {
	if base == nil {
		base = http.DefaultTransport
	}
	return &faultyTransport{injector: i, base: base}
}

type faultyTransport struct {
	injector *Injector
	base     http.RoundTripper
}

// RoundTrip closes the body of a request that goes no further, as every transport has to.
func (t *faultyTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	passed := false
	defer func() {
		if !passed && req.Body != nil {
			_ = req.Body.Close()
		}
	}()
	switch f := t.injector.strike(req.Context()); {
	case f.err == nil:
		passed = true
		return t.base.RoundTrip(req)
	case f.ended:
		return nil, context.Cause(req.Context())
	case f.status != 0:
		return answer{status: f.status}.respond(req, nil)
	default:
		return nil, f.err
	}
}

// CloseIdleConnections passes on what http.Client.CloseIdleConnections asks for.
func (t *faultyTransport) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// fault is what a call gets in place of its callback; without an error there is none.
type fault struct {
	err    error
	status int
	ended  bool // err is the ending of the call's context
}

// strike decides about one call, and lets it wait, hang or panic.
func (i *Injector) strike(ctx context.Context) fault {
	i.mu.Lock()
	f := i.faults
	i.mu.Unlock()
	if !f.any() || f.Gate != nil && !f.Gate(ctx) {
		return fault{}
	}
	d := i.draw(f)
	if d.slow && !pause(ctx, i.Clock, d.latency) {
		return fault{err: ctx.Err(), ended: true}
	}
	switch d.fate {
	case fails:
		return fault{err: f.Err, status: f.Status}
	case hangs:
		hang(ctx)
		return fault{err: ctx.Err(), ended: true}
	case panics:
		panic(f.Err)
	}
	return fault{}
}

type fate uint8

const (
	passes fate = iota
	fails
	hangs
	panics
)

type draw struct {
	fate    fate
	slow    bool
	latency time.Duration
}

// draw is what happens to the next call. Each call has a generator of its own, so that what it gets does not depend on how
// many draws the calls before it have made.
func (i *Injector) draw(f Faults) draw {
	i.mu.Lock()
	defer i.mu.Unlock()
	random := rand.New(rand.NewPCG(i.Seed, uint64(i.counts.Calls)))
	i.counts.Calls++
	var d draw
	switch u := random.Float64(); {
	case u < f.Fail:
		d.fate = fails
		i.counts.Failed++
	case u < f.Fail+f.Hang:
		d.fate = hangs
		i.counts.Hung++
	case u < f.Fail+f.Hang+f.Panic:
		d.fate = panics
		i.counts.Panicked++
	}
	if f.Latency+f.Jitter > 0 && random.Float64() < f.Slow {
		d.slow = true
		d.latency = f.Latency + time.Duration(random.Float64()*float64(f.Jitter))
		i.counts.Slowed++
	}
	return d
}
