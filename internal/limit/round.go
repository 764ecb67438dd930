package limit

import (
	"math"
	"time"
)

// tally collects the samples of the current round.
type tally struct {
	n                        int
	latency, square, present float64 // sums: of latencies, of their squares, of in-flight counts
	peak                     int
	timeout                  bool
}

func (t *tally) add(latency float64, inFlight int, timeout bool) {
	t.n++
	t.latency += latency
	t.square += latency * latency
	t.present += float64(inFlight)
	t.peak = max(t.peak, inFlight)
	t.timeout = t.timeout || timeout
}

// round is a completed round.
type round struct {
	latency   float64 // mean
	inFlight  float64 // mean, at admission
	tolerance float64
	deviation float64 // standard error of latency / baseline
	reached   bool    // some call was the last that the limit allowed
	busy      bool    // most of the limit was in use
	timeout   bool
	now       time.Duration
}

// bound tells whether the limit is what bounded the calls: only then does their latency say something about it.
func (r round) bound() bool { return r.reached && r.busy }

// mean is that of several rounds.
type mean struct {
	n                 int
	latency, inFlight float64 // sums
}

func (m *mean) add(r round) {
	m.n++
	m.latency += r.latency
	m.inFlight += r.inFlight
}

// value needs at least one round.
func (m *mean) value() (latency, inFlight float64) {
	return m.latency / float64(m.n), m.inFlight / float64(m.n)
}

// evidence is a one-sided CUSUM with the mean of the rounds since it left zero.
type evidence struct {
	sum  float64
	mean mean
}

func (e *evidence) add(score float64, r round) {
	e.sum += score
	if e.sum <= 0 {
		*e = evidence{}
		return
	}
	e.mean.add(r)
}

func (c *Core) endRound(now time.Duration) {
	r := c.closeRound(now)
	c.decide(r)
	c.redraw()
}

// closeRound turns the tally into a round and brings the running estimates up to date.
func (c *Core) closeRound(now time.Duration) round {
	t, l := c.tally, c.law
	c.tally = tally{}
	c.rounds++

	n := float64(t.n)
	r := round{latency: t.latency / n, inFlight: t.present / n, timeout: t.timeout, now: now}
	c.level = r.latency
	variation := max(0, t.square/n/(r.latency*r.latency)-1)
	c.noise += l.noiseGain * (variation - c.noise)

	r.tolerance = c.tolerance
	if r.tolerance == 0 {
		r.tolerance = min(max(l.tolerance/math.Sqrt(c.limit), l.toleranceMin), l.toleranceMax)
	}
	r.deviation = max(r.tolerance/10, math.Sqrt(c.noise/n))
	r.reached = t.peak >= c.effective
	r.busy = r.inFlight >= l.busy*float64(c.effective)
	return r
}

// decide takes the first step that applies; each of them leaves the limit for the next round.
func (c *Core) decide(r round) {
	if r.timeout {
		c.cutForTimeout(r)
		return
	}
	if c.baseline == 0 {
		c.baseline, c.knee = r.latency, r.inFlight
	}
	if c.testStart(r) {
		return
	}
	c.learnTrust(r)
	excess := r.latency / c.baseline
	c.up.add((excess-1-r.tolerance/2)/r.deviation, r)
	c.down.add((1-c.law.margin-excess)/r.deviation, r)
	switch {
	case c.endStarvation(r):
	case c.down.sum >= c.law.decided:
		c.lowerBaseline(r)
	case c.up.sum >= c.law.decided && r.busy:
		if !c.endEpisode(r) {
			c.cut(r)
		}
	default:
		c.refineBaseline(r)
		c.grow(r)
	}
}

// forget drops the evidence, because the limit or the baseline that it was about has changed.
func (c *Core) forget() {
	c.up, c.down = evidence{}, evidence{}
}

func (c *Core) cutForTimeout(r round) {
	c.limit *= c.law.afterTimeout
	c.forget()
	c.episode = episode{}
	c.pause(r.latency, r.now)
}

// lowerBaseline corrects a baseline that was learned in a queue. The limit goes down with it, because a queue may
// still be standing.
func (c *Core) lowerBaseline(r round) {
	c.baseline, _ = c.down.mean.value()
	c.averaged = c.law.renewed
	c.episode = episode{}
	c.forget()
	if r.bound() {
		c.limit *= c.law.afterTimeout
		c.pause(c.law.pause*r.latency, r.now)
	}
}

// cut goes below the estimated knee, so that the next rounds see the dependency without a queue.
func (c *Core) cut(r round) {
	latency, inFlight := c.up.mean.value()
	if !c.episode.open {
		c.episode = episode{open: true, limit: c.limit, trust: c.trust}
		c.episode.mark(latency, inFlight, c.rounds, r.now)
	}
	c.trial = trial{latency: latency, inFlight: inFlight, left: c.law.trustRounds}
	c.knee = inFlight * c.baseline / latency
	c.limit = min(c.limit, inFlight) * max(c.decrease, c.law.drain*c.baseline/latency)
	c.streak = 0
	c.forget()
	c.pause(c.law.pause*latency, r.now)
}

// refineBaseline averages the rounds that saw no queue.
func (c *Core) refineBaseline(r round) {
	if c.up.sum == 0 {
		c.episode = episode{}
	}
	l := c.law
	switch {
	case r.inFlight <= c.knee && r.bound() && c.averaged < l.memory:
		c.averaged++
		c.baseline += (r.latency - c.baseline) / float64(c.averaged+1)
	case r.inFlight < float64(c.effective)/2 && r.latency < c.baseline*(1+r.tolerance/2):
		c.baseline += l.calm * (r.latency - c.baseline)
	}
}

// grow raises the limit only where it was reached: an idle or under-used limiter learns nothing about it.
func (c *Core) grow(r round) {
	l := c.law
	if !r.reached || c.up.sum >= l.decided/2 {
		return
	}
	c.streak++
	pace := min(max(float64(c.streak)/l.streak, 1), l.growthTop)
	c.limit += min(l.growth*pace*math.Sqrt(c.limit), max(l.growthShare, l.growthShare*c.limit))
}
