package limit

import (
	"math"
	"time"
)

// startTest halves the limit once, and again as long as the latency follows, to find out whether the first baseline
// was learned in a queue. Clients that start together see the queue which they all stand in.
type startTest struct {
	done              bool
	queued            bool // some halving shortened the latency
	latency, inFlight float64
	limit             float64 // before the halving; 0: the test has not begun
}

// testStart reports whether the round belonged to the test. A round that the limit did not bound ends it.
func (c *Core) testStart(r round) bool {
	s, l := &c.start, c.law
	if s.done {
		return false
	}
	if !r.bound() {
		s.done = true
		return false
	}
	if s.limit == 0 {
		c.halve(r)
		return true
	}
	elasticity := math.Log(s.latency/r.latency) / max(0.1, math.Log(s.inFlight/r.inFlight))
	switch {
	case elasticity >= l.queued:
		s.queued = true
		c.baseline, c.averaged, c.trust = r.latency, l.memory, l.hopeful
		if c.limit > c.min {
			c.halve(r)
			return true
		}
	case s.queued:
		c.baseline = min(s.latency, r.latency)
	default:
		c.baseline, c.averaged = (s.latency+r.latency)/2, 1
		c.limit = s.limit
	}
	s.done = true
	c.knee = c.limit
	c.pause(l.pause*r.latency, r.now)
	return true
}

func (c *Core) halve(r round) {
	c.start.latency, c.start.inFlight, c.start.limit = r.latency, r.inFlight, c.limit
	c.limit /= 2
	c.pause(c.law.pause*r.latency, r.now)
}

// trial compares the rounds after a cut with what it was decided on.
type trial struct {
	latency, inFlight float64 // of the cut
	left              int     // rounds to come
	after             mean
}

// learnTrust judges a cut by the rounds after it: did the latency follow the in-flight count as that of a queue would?
func (c *Core) learnTrust(r round) {
	t := &c.trial
	if t.left == 0 {
		return
	}
	t.left--
	t.after.add(r)
	if t.left > 0 {
		return
	}
	latency, inFlight := t.after.value()
	fall := math.Log(t.inFlight / inFlight)
	if fall <= 0.1 {
		return // too small for the latency to show it
	}
	// The latency cannot fall below the baseline, however deep the cut.
	expected := min(fall, math.Log(max(1.1, t.latency/c.baseline)))
	elasticity := math.Log(t.latency/latency) / expected
	c.trust += c.law.trustGain * (min(max(elasticity, 0), 1.2) - c.trust)
}

// episode is a sequence of cuts without a calm round between them.
type episode struct {
	open              bool
	limit, trust      float64 // when it opened
	latency, inFlight float64 // when it opened, or when the latency was last seen to follow
	round             int
	at                time.Duration
}

func (e *episode) mark(latency, inFlight float64, round int, now time.Duration) {
	e.latency, e.inFlight, e.round, e.at = latency, inFlight, round, now
}

// endEpisode decides, once the cuts have halved the in-flight count, whether they cure anything. If the latency did
// not follow, it is not a queue: the dependency has become slower, or the queue is not ours to drain. It reports
// whether that ended the episode; otherwise the cuts go on.
func (c *Core) endEpisode(r round) bool {
	e, l := &c.episode, c.law
	if !e.open {
		return false
	}
	latency, inFlight := c.up.mean.value()
	atFloor := c.limit <= c.min
	if inFlight > max(c.min, l.halved*e.inFlight) && !atFloor {
		return false
	}
	elasticity := 0.0
	if inFlight < 0.9*e.inFlight { // at the floor there may be nothing left to cut
		elasticity = math.Log(e.latency/latency) / math.Log(e.inFlight/inFlight)
	}
	old := r.now-e.at >= l.patience && c.rounds-e.round >= l.patient
	deep := inFlight < l.deep*e.inFlight || atFloor
	switch {
	case elasticity >= l.follows:
		e.mark(latency, inFlight, c.rounds, r.now)
		return false
	case e.trust >= l.trusted:
		c.acceptSlower(latency, latency, r.now)
	case deep && old && latency > l.slower*c.baseline:
		c.acceptSlower(latency, latency/(1+l.margin), r.now)
	case old:
		c.giveIn(latency, r)
	default:
		return false
	}
	return true
}

// acceptSlower takes the present latency for the new baseline and undoes the cuts that it caused, as far as three
// times the present limit.
func (c *Core) acceptSlower(latency, baseline float64, now time.Duration) {
	c.baseline, c.averaged = baseline, c.law.renewed
	c.limit = max(c.limit, min(c.episode.limit, 3*c.limit))
	c.knee = c.limit
	c.episode = episode{}
	c.forget()
	c.pause(c.law.pause*latency, now)
}

// giveIn takes the present latency for tolerable: cutting further would starve this client without helping anybody.
func (c *Core) giveIn(latency float64, r round) {
	c.baseline = max(c.baseline, latency/(1+r.tolerance/2))
	c.averaged = c.law.memory
	c.up = evidence{}
	c.episode = episode{}
}

// starvation watches a limit that has stayed far below its recent height although it is in use: whatever the cuts
// were made on, the latency has not come back to the baseline.
type starvation struct {
	high   float64 // highest limit of late
	rounds mean
	since  time.Duration
}

// endStarvation corrects the baseline after two minutes of starvation, and reports whether it did.
func (c *Core) endStarvation(r round) bool {
	s, l := &c.starving, c.law
	s.high = max(c.limit, l.hungerDecay*s.high)
	if c.limit >= l.hunger*s.high || !r.bound() {
		*s = starvation{high: s.high}
		return false
	}
	if s.rounds.n == 0 {
		s.since = r.now
	}
	s.rounds.add(r)
	latency, _ := s.rounds.value()
	if r.now-s.since < l.starvation || s.rounds.n < l.starvedFor || latency <= (1+l.margin)*c.baseline {
		return false
	}
	c.baseline, c.averaged, c.trust = latency, l.renewed, l.doubtful
	*s = starvation{high: c.limit / l.hunger}
	c.episode = episode{}
	c.forget()
	return true
}
