// Package limitsim simulates clients that share one dependency, on virtual time: an event loop, no goroutine, no
// clock, every draw from one seeded source. It serves the tests of package limit and bench/limiter.
//
// Callers are a closed loop: whoever gets an answer calls again at once, if its client's limiter allows.
package limitsim

import (
	"math/rand/v2"
	"slices"
	"time"
)

// Limiter is the side of a limiter that the simulation sees. Fixed is one, and so is limit.Core.
type Limiter interface {
	Effective() int
	Limit() float64
	Success(latency time.Duration, inFlight int, now time.Duration)
	Timeout(latency time.Duration, inFlight int, now time.Duration)
}

// Fixed is a limit that learns nothing.
type Fixed int

// Effective is the limit.
func (f Fixed) Effective() int { return int(f) }

// Limit is the limit.
func (f Fixed) Limit() float64 { return float64(f) }

// Success does nothing.
func (Fixed) Success(time.Duration, int, time.Duration) {}

// Timeout does nothing.
func (Fixed) Timeout(time.Duration, int, time.Duration) {}

// Ending is how the calls of the simulation end.
type Ending uint8

// Succeed: after the latency of the model, and that is a sample. Fail: after 1 ms, without reaching the dependency's
// servers, and that is none (a refused connection, a caller who hangs up). TimeOut: after one second, by the
// caller's own bound.
const (
	Succeed Ending = iota
	Fail
	TimeOut
)

// Model is a kind of dependency.
type Model struct {
	Name    string
	Service Service // time that one call takes
	// Exact: all calls share the servers, service × max(1, in-flight/capacity), fixed at admission. Otherwise there is one
	// server for each unit of capacity, and one queue.
	Exact bool
}

// Load is a dependency and those who call it.
type Load struct {
	Model    Model
	Capacity int // calls that are served at once without delay; 0: any number
	Callers  int // per client
}

// Simulation is one run. The exported fields may be changed between its steps.
type Simulation struct {
	Slowdown float64 // factor on the service time of calls that start from now on
	Ending   Ending  // of calls that start from now on

	load    Load
	limiter func(client int) Limiter
	random  *rand.Rand
	now     time.Duration
	clients []*client
	present int // calls at the dependency: served or waiting
	serving int
	waiting queue
	events  events

	limits  float64 // sum over the clients
	low     float64 // extremes of limits while measuring
	top     float64
	area    float64       // integral of limits
	settled time.Duration // area is integrated up to here
	answers []time.Duration
	measure bool
}

type client struct {
	limiter  Limiter
	inFlight int
	gone     bool
}

type call struct {
	client   *client
	admitted time.Duration
	inFlight int
	ending   Ending
}

// New returns a simulation without clients at time zero. limiter makes that of the client with that number.
func New(l Load, seed uint64, limiter func(client int) Limiter) *Simulation {
	return &Simulation{Slowdown: 1, load: l, limiter: limiter, random: rand.New(rand.NewPCG(seed, 0x51))}
}

// MeasureFixed is what one client with a fixed limit of n has of the load between two points in time.
func (l Load) MeasureFixed(seed uint64, n int, from, to time.Duration) Report {
	s := New(l, seed, func(int) Limiter { return Fixed(n) })
	s.Join(1)
	s.Run(from)
	return s.Measure(to)
}

// Join adds n clients. Their callers call at once.
func (s *Simulation) Join(n int) {
	s.integrate()
	for range n {
		c := &client{limiter: s.limiter(len(s.clients))}
		s.clients = append(s.clients, c)
		s.limits += c.limiter.Limit()
		s.admit(c)
	}
}

// Leave takes away the n clients that joined last. Their calls in flight still end.
func (s *Simulation) Leave(n int) {
	s.integrate()
	for range n {
		last := len(s.clients) - 1
		c := s.clients[last]
		s.clients = s.clients[:last]
		s.limits -= c.limiter.Limit()
		c.gone = true
	}
}

// Run advances the simulation to the given time.
func (s *Simulation) Run(until time.Duration) {
	for len(s.events) > 0 && s.events[0].at <= until {
		e := s.events.pop()
		s.now = e.at
		s.end(e.call)
	}
	s.now = until
}

// Report is what happened within one measured stretch of time.
type Report struct {
	Goodput  float64       // successful calls per second
	P50, P99 time.Duration // of the successful calls
	Limit    float64       // mean over time of the sum of all clients' limits
	Low, Top float64       // the extremes of that sum
}

// Measure advances the simulation to the given time and reports on the way there.
func (s *Simulation) Measure(until time.Duration) Report {
	from := s.now
	s.integrate()
	s.area, s.answers, s.measure = 0, s.answers[:0], true
	s.low, s.top = s.limits, s.limits
	s.Run(until)
	s.integrate()
	s.measure = false

	r := Report{
		Goodput: float64(len(s.answers)) / (until - from).Seconds(),
		Limit:   s.area / float64(until-from),
		Low:     s.low,
		Top:     s.top,
	}
	if len(s.answers) > 0 {
		slices.Sort(s.answers)
		r.P50 = s.answers[len(s.answers)/2]
		r.P99 = s.answers[len(s.answers)*99/100]
	}
	return r
}

func (s *Simulation) integrate() {
	s.area += s.limits * float64(s.now-s.settled)
	s.settled = s.now
}

func (s *Simulation) admit(c *client) {
	for c.inFlight < s.load.Callers && c.inFlight < c.limiter.Effective() {
		c.inFlight++
		s.arrive(call{client: c, admitted: s.now, inFlight: c.inFlight, ending: s.Ending})
	}
}

func (s *Simulation) arrive(c call) {
	switch c.ending {
	case Fail:
		s.schedule(c, time.Millisecond)
		return
	case TimeOut:
		s.schedule(c, time.Second)
		return
	}
	s.present++
	capacity := s.load.Capacity
	switch {
	case s.load.Model.Exact:
		s.schedule(c, s.service(max(1, float64(s.present)/float64(capacity))))
	case capacity > 0 && s.serving == capacity:
		s.waiting.push(c)
	default:
		s.serving++
		s.schedule(c, s.service(1))
	}
}

func (s *Simulation) service(stretch float64) time.Duration {
	return time.Duration(s.Slowdown * stretch * s.load.Model.Service(s.random))
}

func (s *Simulation) schedule(c call, after time.Duration) {
	s.events.push(event{at: s.now + after, call: c})
}

func (s *Simulation) end(c call) {
	if c.ending == Succeed {
		s.present--
		if !s.load.Model.Exact {
			s.serveNext()
		}
	}
	owner := c.client
	owner.inFlight--
	if owner.gone {
		return
	}
	before := owner.limiter.Limit()
	latency := s.now - c.admitted
	switch c.ending {
	case Succeed:
		owner.limiter.Success(latency, c.inFlight, s.now)
		if s.measure {
			s.answers = append(s.answers, latency)
		}
	case TimeOut:
		owner.limiter.Timeout(latency, c.inFlight, s.now)
	}
	if after := owner.limiter.Limit(); after != before {
		s.integrate()
		s.limits += after - before
		s.low, s.top = min(s.low, s.limits), max(s.top, s.limits)
	}
	s.admit(owner)
}

func (s *Simulation) serveNext() {
	if s.waiting.empty() {
		s.serving--
		return
	}
	s.schedule(s.waiting.pop(), s.service(1))
}
