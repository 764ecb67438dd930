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
	// Fail is the share of the calls that fail, with Err or Status, in place of the callback.
	Fail float64
	// Err is the error of Fail and the value of Panic; nil: ErrInjected.
	Err error
	// Status is what a transport answers to the share of Fail, without a body, in place of Err; three digits. 0: Err. Callbacks
	// always get Err.
	Status int
	// Hang is the share that gets no answer until its context ends, and then the context's error, from a transport its cause.
	// The call panics under a context that cannot end, as with Sequence.Hang.
	Hang float64
	// Panic is the share that panics with Err.
	Panic float64

	// Latency is added to calls, failing and good ones, before anything else happens. A call whose context ends before gets the
	// context's error, from a transport its cause.
	Latency time.Duration
	// Jitter is what Latency is lengthened by at most, each length up to it as likely.
	Jitter time.Duration
	// Slow is the share of the calls that Latency and Jitter are added to; 0: all of them.
	Slow float64

	// Gate chooses the calls that Faults are for; nil: all of them. The others pass untouched, and are not counted. It runs on
	// the goroutine of the call, with no lock held, and is called concurrently.
	Gate func(ctx context.Context) bool
}

// Injector puts faults into calls. The zero Injector injects nothing until Set. It is safe for concurrent use and must not
// be copied once it is in use.
//
// What happens to the n-th call that a gate lets in depends on Seed, n and the Faults of the moment alone: one goroutine
// sees the same faults in each run, several see the same ones in the order in which they come.
type Injector struct {
	// Seed chooses the calls that faults hit; any value is good, 0 too. Set it before the first call.
	Seed uint64
	// Clock is the clock of the latency; nil: the standard time package. Set it before the first call. It is called concurrently.
	Clock resilience.Clock

	mu     sync.Mutex // guards what is beneath
	faults Faults
	counts Injected
}

// Injected counts what an Injector has done. A call whose context ends during the latency is in Calls and Slowed alone: what
// else was to happen to it never did.
type Injected struct {
	Calls    int // calls that came while there were faults, less those that a gate kept out
	Slowed   int // of these, calls that latency began for
	Failed   int // calls that got Err or Status
	Hung     int // calls that began to hang, whether or not they still do
	Panicked int // calls that panicked with Err
}

// Set replaces the faults from the next call on; Set(Faults{}) ends them. A call that has begun keeps those that it began with.
// A share, duration or status out of its range panics.
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

// Injected returns what was done so far, as one snapshot.
func (i *Injector) Injected() Injected {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.counts
}

// Inject is fn with the faults of i. A nil i or fn panics. fn runs on the goroutine of the call, with no lock held; if the result
// is called concurrently, so is fn.
func Inject[T any](i *Injector, fn func(ctx context.Context) (T, error)) func(ctx context.Context) (T, error) {
	if i == nil {
		misuse("the injector of Inject is nil")
	}
	if fn == nil {
		misuse("the function of Inject is nil")
	}
	return func(ctx context.Context) (T, error) {
		if f := i.strike(ctx); f.err != nil {
			var zero T
			return zero, f.err
		}
		return fn(ctx)
	}
}

// Run is fn with the faults of i: Inject for Policy.Run. A nil fn panics. fn runs on the goroutine of the call, with no lock held;
// if the result is called concurrently, so is fn.
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

// RoundTripper is base with the faults of i; nil: http.DefaultTransport. The gate gets the context of the request. A request
// that gets a fault never reaches base.
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
		i.count(&i.counts.Failed)
		return fault{err: f.Err, status: f.Status}
	case hangs:
		end := endOf(ctx, "Faults.Hang")
		i.count(&i.counts.Hung)
		<-end
		return fault{err: ctx.Err(), ended: true}
	case panics:
		i.count(&i.counts.Panicked)
		panic(f.Err)
	}
	return fault{}
}

// count adds one to a counter of i.counts.
func (i *Injector) count(counter *int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	*counter++
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
	case u < f.Fail+f.Hang:
		d.fate = hangs
	case u < f.Fail+f.Hang+f.Panic:
		d.fate = panics
	}
	if f.Latency+f.Jitter > 0 && random.Float64() < f.Slow {
		d.slow = true
		d.latency = f.Latency + time.Duration(random.Float64()*float64(f.Jitter))
		i.counts.Slowed++
	}
	return d
}
