package limit

import "time"

// law holds the constants. They were found by simulation, one dimensionless set for all dependencies; the reasons
// stand beside those that have one. It is a value and not a block of constants so that tests can break one at a
// time and see that it matters.
type law struct {
	shortest   int     // samples in a round, and samples dropped after the start
	longest    int     // a round never waits for more than this, however noisy
	roundError float64 // standard error of a round's mean that its length aims at
	clip       float64 // a sample counts at most this many running means
	levelGain  float64
	noiseGain  float64

	tolerance, toleranceMin, toleranceMax float64 // tolerance/√limit between the two: small shares grow while large ones shrink
	margin                                float64 // relative difference of latencies that counts at all: half of toleranceMin
	decided                               float64 // sum of evidence that decides; near 0 it is a bare threshold, and one client starves
	busy                                  float64 // share of the limit that must be in use for it to be what bounds the calls

	decrease     float64       // the deepest single cut: one bad round costs at most 30 %
	drain        float64       // a cut goes this far below the knee, so that the next round sees no queue
	afterTimeout float64       // cut by a round with an own timeout, and by a lowered baseline
	pause        float64       // mean latencies to wait after a change; without it rounds judge the old limit
	growth       float64       // × √limit per round: additive enough for shares to even out
	growthShare  float64       // and at most this share of the limit
	growthTop    float64       // a long streak grows this many times faster
	streak       float64       // rounds for each multiple of growth
	memory       int           // rounds that a baseline averages; without end it would follow a standing queue
	renewed      int           // rounds that a corrected baseline counts for
	calm         float64       // gain of the baseline from under-used rounds
	queued       float64       // elasticity of latency to limit that shows a queue in the start test
	follows      float64       // and in an episode of cuts
	trusted      float64       // trust from which a slow-down is believed without waiting
	doubtful     float64       // trust where nothing is known
	hopeful      float64       // trust after the start test has seen a queue drain
	trustGain    float64       // weight of one cut's outcome
	trustRounds  int           // rounds after a cut that tell whether the latency followed
	halved       float64       // share of the episode's first in-flight count where the latency must have followed
	deep         float64       // share below which the episode has gone too far
	slower       float64       // multiple of the baseline that counts as a lasting slow-down even without trust
	patience     time.Duration // how long an episode may take before it ends
	patient      int           // and how many rounds
	hunger       float64       // share of the highest recent limit below which the limit starves
	hungerDecay  float64       // of the highest recent limit, per round
	starvation   time.Duration // how long it may starve: a trade-off between a lone client and many clients
	starvedFor   int           // and how many rounds
}

var standard = law{
	shortest: 20, longest: 200, roundError: 0.08, clip: 4, levelGain: 0.02, noiseGain: 0.2,
	tolerance: 0.6, toleranceMin: 0.15, toleranceMax: 0.6, margin: 0.075, decided: 5, busy: 0.7,
	decrease: 0.7, drain: 0.9, afterTimeout: 0.9, pause: 1.5,
	growth: 0.25, growthShare: 0.1, growthTop: 8, streak: 10,
	memory: 40, renewed: 2, calm: 0.01,
	queued: 0.3, follows: 0.5, trusted: 0.75, doubtful: 0.5, hopeful: 0.7, trustGain: 0.2, trustRounds: 2,
	halved: 0.55, deep: 0.3, slower: 1.6, patience: 30 * time.Second, patient: 20,
	hunger: 0.3, hungerDecay: 0.998, starvation: 120 * time.Second, starvedFor: 6,
}
