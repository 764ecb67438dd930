// Package limit holds the control law of the adaptive concurrency limiter: how many calls may be in flight to a
// dependency, learned from nothing but the latency of those calls.
//
// A dependency with room for C calls answers in its baseline b as long as C suffices, and in b × in-flight / C
// beyond. The law follows from three consequences of that:
//
//   - The mean latency obeys it whatever the distribution (Little's law); a low quantile jumps between the modes of
//     a cache. So rounds of samples are judged by their mean.
//   - Means are noisy. A round is as long as its noise demands, and two running sums of evidence (CUSUM) decide:
//     a large excess at once, a small one after several rounds.
//   - A cut is the experiment. It goes below the estimated knee, so the queue drains and a baseline that was learned
//     in a queue is corrected. If the limit halves and the latency does not follow, the baseline was wrong.
//
// A [Core] has no lock, no clock and no allocation after New; it is a few hundred bytes for ever. Its owner supplies
// the lock and the readings of a monotonic clock.
package limit

import (
	"math"
	"math/rand/v2"
	"time"
)

// Config is what the user may set. All fields but Tolerance and Decrease are required: 1 ≤ Min ≤ Initial ≤ Max.
type Config struct {
	Initial, Min, Max int

	// Tolerance is how far above the baseline the mean latency may lie before it counts as queueing: 0.2 accepts
	// a fifth. Zero: the law's own, 0.6/√limit between 0.15 and 0.6.
	Tolerance float64

	// Decrease is the share of the limit that the deepest single cut leaves. Zero: 0.7.
	Decrease float64

	// Seed of the dither: the same seed, samples and readings give the same limits.
	Seed uint64
}

// Core is the law and its state. It is not safe for concurrent use.
type Core struct {
	law       *law
	min, max  float64
	tolerance float64 // written by the user; 0: the law's own
	decrease  float64

	limit     float64
	effective int      // limit, dithered to a whole number
	dither    rand.PCG // redrawn after each round
	need      int      // samples that complete the current round

	baseline float64 // mean latency without a queue, in nanoseconds; 0: cold
	averaged int     // how many rounds the baseline averages, less one
	noise    float64 // squared coefficient of variation of one sample
	knee     float64 // in-flight count where the queue begins, by the last estimate
	trust    float64 // how well the latency has followed past cuts: 1 as the model says, 0 not at all
	streak   int     // rounds of growth since the last cut

	level  float64       // running mean of all samples, to clip the next ones by
	unripe int           // samples still to be dropped after the start
	since  time.Duration // samples released before this belong to an older limit

	tally    tally
	rounds   int // completed
	up, down evidence
	start    startTest
	episode  episode
	trial    trial
	starving starvation
}

// New returns a cold core. The first samples after it are dropped, because the first calls to come back are the
// fast ones.
func New(c Config) *Core {
	return newCore(c, &standard)
}

// unlimited is the limit above which there is none: far from where whole numbers are lost in a float64.
const unlimited = 1 << 30

func newCore(cfg Config, l *law) *Core {
	c := &Core{
		law:       l,
		min:       float64(min(cfg.Min, unlimited)),
		max:       float64(min(cfg.Max, unlimited)),
		tolerance: cfg.Tolerance,
		decrease:  cfg.Decrease,
		limit:     float64(cfg.Initial),
		noise:     1,
		trust:     l.doubtful,
		unripe:    l.shortest,
		since:     math.MinInt64,
	}
	if c.decrease == 0 {
		c.decrease = l.decrease
	}
	c.dither.Seed(cfg.Seed, 0)
	c.redraw()
	return c
}

// Effective is the admission bound: a call may start while fewer than Effective are in flight. It is at least 1 and
// stays put between rounds. Its mean over the rounds is Limit, because below 10 a whole number is too coarse.
func (c *Core) Effective() int { return c.effective }

// Limit is the limit itself, between Min and Max.
func (c *Core) Limit() float64 { return c.limit }

// Baseline is the mean latency that the law takes for that of the dependency without a queue. Zero: cold, no round
// is complete yet.
func (c *Core) Baseline() time.Duration { return time.Duration(c.baseline) }

// Success records a call that succeeded after latency. inFlight is the number of calls that were in flight when it
// was admitted, itself included. A latency of zero or less counts as one nanosecond.
func (c *Core) Success(latency time.Duration, inFlight int, now time.Duration) {
	c.sample(latency, inFlight, false, now)
}

// Timeout records a call that was given up after latency, by a bound of the caller's own: evidence of overload by
// itself. A call that was cancelled or refused, or that failed fast, is no sample of any kind.
func (c *Core) Timeout(latency time.Duration, inFlight int, now time.Duration) {
	c.sample(latency, inFlight, true, now)
}

func (c *Core) sample(latency time.Duration, inFlight int, timeout bool, now time.Duration) {
	d := c.clip(float64(max(latency, 1)))
	if c.unripe > 0 {
		c.unripe--
		return
	}
	// By the time of release, never by that of admission: counting only calls admitted since the change would
	// favour the short ones.
	if now < c.since {
		return
	}
	c.tally.add(d, max(inFlight, 1), timeout)
	if c.tally.n >= c.need {
		c.endRound(now)
	}
}

// clip bounds one sample by the running mean, so that a single outlier cannot make a round. The mean follows every
// sample, those of a pause included, and so a lasting rise gets through within a few dozen calls. There is none to clip
// by before the first round is complete: the first calls to come back are the fast ones, and a mean that begins with
// a cache hit would clip the first baseline to a fraction of itself.
func (c *Core) clip(d float64) float64 {
	if c.level == 0 {
		return d
	}
	d = min(d, c.law.clip*c.level)
	c.level += c.law.levelGain * (d - c.level)
	return d
}

// redraw brings the limit back into its range and rounds it up or down by chance, in proportion, for the next round.
func (c *Core) redraw() {
	c.limit = min(max(c.limit, c.min), c.max)
	u := float64(c.dither.Uint64()>>11) * 0x1p-53
	// The sum may round up to the next whole number: the outer min keeps that within Max.
	c.effective = int(min(math.Floor(c.limit+u), c.max))

	noisy := min(float64(c.law.longest), c.noise/(c.law.roundError*c.law.roundError))
	c.need = max(c.law.shortest, int(c.limit), int(noisy))
}

// pause lets the calls of the old limit come back before the next round begins.
func (c *Core) pause(latency float64, now time.Duration) {
	end := float64(now) + latency
	if end >= math.MaxInt64 {
		c.since = math.MaxInt64
		return
	}
	c.since = time.Duration(end)
}
