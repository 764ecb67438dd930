package resilience

import (
	"fmt"
	"math"
	"time"

	"github.com/measuredgo/resilience/internal/trip"
)

// Off switches off what a zero field would leave at its default: BreakerConfig.ConsecutiveFailures, RelativeFailures.Multiple,
// RelativeSlow.Multiple, BudgetConfig.Fraction and BudgetConfig.MinPerSecond.
const Off = -1

// BreakerConfig says when a breaker opens and how it closes again. A zero field means the default.
//
// Whichever rule fires first opens the breaker. The written constants are exact. The measured rules compare the
// dependency with itself and ask whether chance would explain the difference, so that they stay quiet where failures
// are usual; until enough results are known they take no part.
type BreakerConfig struct {
	Name                string           // in the text of Explain
	ConsecutiveFailures int              // opens after so many in a row; default 5, rising with the normal failure rate; a written value, 5 included, is exact; Off: never
	FailureRatio        float64          // opens at this share of the window's calls, exactly; 0: none
	Failures            RelativeFailures // opens at a multiple of the normal failure rate
	SlowThreshold       time.Duration    // calls longer than that, good or bad, count as slow, exactly; 0: none
	SlowCalls           RelativeSlow     // what counts as slow, measured
	SlowRatio           float64          // opens at this share of slow calls; with SlowCalls its least; default 0.5
	MinCalls            int              // no share is judged with fewer calls in the window; default 20
	Window              time.Duration    // the span that is judged; default 30 s, at most 1 h
	OpenFor             time.Duration    // default 15 s; each time with equal jitter: between a half of it and all
	MaxOpenFor          time.Duration    // OpenFor doubles up to that while probes keep failing; default 2 min
	Probes              int              // concurrent probes while half-open; default 1
	ProbeSuccesses      int              // closes after so many good probes in a row, and the first bad one re-opens; default: two, and a bad one counts by how unusual it is
	Recovery            Recovery         // admits a growing share before it closes; zero: off
	ConstantsOnly       bool             // no measured rule: five in a row, and what is written above
	Clock               Clock            // nil: that of the policy, of a shared breaker the standard time package
}

// RelativeFailures is the measured failure rule. Windows must be long enough that an incident cannot become normal
// before the judged window has filled: Window / Multiple >= 2 * BreakerConfig.Window.
type RelativeFailures struct {
	Multiple   float64       // of the normal failure rate, but never more than half-way from it to 1; default 5; Off: none
	Window     time.Duration // over which normal is learnt; default 5 min, or longer where the judged window asks for it
	MinSamples int           // results until normal is known; default 100
	Floor      float64       // no failure rate below it opens; default 0.05
}

// RelativeSlow is the measured slow rule: calls longer than Multiple times the quantile of the successes' durations are
// slow. As with RelativeFailures, Quantile * Window >= 2 * BreakerConfig.SlowRatio * BreakerConfig.Window.
type RelativeSlow struct {
	Multiple   float64       // default 3; Off: none
	Quantile   float64       // default 0.5
	Window     time.Duration // default 5 min, or longer where the judged window asks for it
	MinSamples int           // successes until it is known; default 20
}

// Recovery admits a growing share of the calls after the half-open state, spread evenly. A slow call halves the share, for
// at most four times as long as the share grows undisturbed. A failure opens the breaker again, unless the dependency
// normally fails now and then: it counts as it did for the probes.
type Recovery struct {
	Fraction float64       // of the time that the breaker was not closed: how long the share grows; 0: off
	Initial  float64       // the first share; default 0.05
	Min, Max time.Duration // bounds of the growth; default 1 s and 30 s
}

// The largest accepted settings. Counts over two windows of an hour fit the 32 bits that they are kept in.
const (
	maxBreakerWindow   = time.Hour
	maxBreakerCount    = 1_000_000
	maxBreakerProbes   = 1_000
	maxBreakerOpen     = 24 * time.Hour
	maxBreakerMultiple = 1_000
)

// resolve fills the defaults in and refuses what makes no sense. Resolving a resolved configuration changes nothing.
// ConsecutiveFailures and ProbeSuccesses stay 0 where nothing was written: the law derives them.
func (c BreakerConfig) resolve(collected *checker) BreakerConfig {
	k := breakerChecker{collected}
	before := len(k.problems)
	wantsSlow := c.wantsSlow() // before the defaults are filled in
	c.SlowRatio = orDefault(c.SlowRatio, 0.5)
	c.MinCalls = orDefault(c.MinCalls, 20)
	c.Window = orDefault(c.Window, 30*time.Second)
	c.Probes = orDefault(c.Probes, 1)

	if n := c.ConsecutiveFailures; n < Off || n > maxBreakerCount {
		k.refuse("ConsecutiveFailures", n, fmt.Sprintf("1 to %d, 0 for the default, or Off", maxBreakerCount))
	}
	if c.ProbeSuccesses != 0 {
		k.count("ProbeSuccesses", c.ProbeSuccesses, maxBreakerProbes)
	}
	k.count("MinCalls", c.MinCalls, maxBreakerCount)
	k.count("Probes", c.Probes, maxBreakerProbes)
	if r := c.FailureRatio; !(r >= 0 && r <= 1) {
		k.refuse("FailureRatio", r, "more than 0, at most 1, or 0 for none")
	}
	k.ratio("SlowRatio", c.SlowRatio)
	k.span("Window", c.Window, 10*time.Millisecond, maxBreakerWindow)
	if d := c.SlowThreshold; d < 0 || d > maxBreakerOpen {
		k.refuse("SlowThreshold", d, fmt.Sprintf("more than 0, at most %v, or 0 for none", maxBreakerOpen))
	}
	if c.Clock != nil && isNil(c.Clock) {
		k.refuse("Clock", bare("a nil pointer"), "a clock, or nothing")
	}
	c.resolveOpen(k)
	c.resolveRecovery(k)
	sound := len(k.problems) == before
	c.resolveFailures(k, sound)
	c.resolveSlow(k, sound, wantsSlow)
	return c
}

// resolveOpen lets a default give way to what was written: it never makes the other one wrong.
func (c *BreakerConfig) resolveOpen(k breakerChecker) {
	longest := c.MaxOpenFor
	if longest == 0 {
		longest = max(c.OpenFor, 2*time.Minute)
	}
	if c.OpenFor == 0 {
		c.OpenFor = 15 * time.Second
		if longest > 0 {
			c.OpenFor = min(c.OpenFor, longest)
		}
	}
	c.MaxOpenFor = longest
	if k.span("OpenFor", c.OpenFor, 1, maxBreakerOpen) {
		k.span("MaxOpenFor", c.MaxOpenFor, c.OpenFor, maxBreakerOpen)
	}
}

func (c *BreakerConfig) resolveRecovery(k breakerChecker) {
	r := &c.Recovery
	if r.Fraction == 0 {
		if *r != (Recovery{}) {
			k.refuse("Recovery.Fraction", r.Fraction, "more than 0 beside other fields of Recovery")
		}
		return
	}
	if !(r.Fraction > 0 && r.Fraction <= 10) {
		k.refuse("Recovery.Fraction", r.Fraction, "more than 0, at most 10")
	}
	r.Initial = orDefault(r.Initial, 0.05)
	if !(r.Initial > 0 && r.Initial < 1) {
		k.refuse("Recovery.Initial", r.Initial, "more than 0, less than 1")
	}
	longest := r.Max
	if longest == 0 {
		longest = max(r.Min, 30*time.Second)
	}
	if r.Min == 0 {
		r.Min = time.Second
		if longest > 0 {
			r.Min = min(r.Min, longest)
		}
	}
	r.Max = longest
	if k.span("Recovery.Min", r.Min, 1, maxBreakerOpen) {
		k.span("Recovery.Max", r.Max, r.Min, maxBreakerOpen)
	}
}

// resolveFailures also checks the race between the two windows, if what it rests on is sound.
func (c *BreakerConfig) resolveFailures(k breakerChecker, sound bool) {
	f := &c.Failures
	if f.Multiple == Off || c.ConstantsOnly {
		alone := RelativeFailures{Multiple: f.Multiple}
		if *f != alone || f.Multiple != Off && f.Multiple != 0 {
			c.refuseIdle(k, "Failures")
		}
		*f = RelativeFailures{Multiple: Off}
		return
	}
	before := len(k.problems)
	multiplied := f.Multiple != 0
	wanted := multiplied || f.Window != 0
	f.Multiple = orDefault(f.Multiple, 5)
	f.MinSamples = orDefault(f.MinSamples, 100)
	f.Floor = orDefault(f.Floor, 0.05)
	k.multiple("Failures.Multiple", f.Multiple)
	k.count("Failures.MinSamples", f.MinSamples, maxBreakerCount)
	if !(f.Floor > 0 && f.Floor < 1) {
		k.refuse("Failures.Floor", f.Floor, "more than 0, less than 1")
	}
	if f.Window != 0 {
		k.span("Failures.Window", f.Window, 10*time.Millisecond, maxBreakerWindow)
	}
	if !sound || len(k.problems) > before {
		return
	}
	least := 2 * f.Multiple * float64(c.Window)
	if k.race("Failures.Window", &f.Window, least, "2 x Failures.Multiple x Window") {
		return
	}
	most := math.Floor(100*float64(widestJudged)/float64(c.Window)) / 100 // two digits that are accepted as they are printed
	switch {
	case multiplied && most > 1:
		k.refuse("Failures.Multiple", f.Multiple, fmt.Sprintf("at most %v (%v / Window), %s", most, widestJudged, orAbsorbed))
	case wanted:
		k.tooWide(c.Window, 1/f.Multiple, "/ Failures.Multiple")
	default:
		*f = RelativeFailures{Multiple: Off}
	}
}

// wantsSlow reports whether anything was written that the span of the measured slow rule depends on, or its multiple. A
// SlowRatio beside a SlowThreshold is there for the threshold.
func (c *BreakerConfig) wantsSlow() bool {
	s := c.SlowCalls
	return s.Multiple != 0 || s.Quantile != 0 || s.Window != 0 || c.SlowRatio != 0 && c.SlowThreshold == 0
}

func (c *BreakerConfig) resolveSlow(k breakerChecker, sound, wanted bool) {
	s := &c.SlowCalls
	if s.Multiple == Off || c.ConstantsOnly {
		alone := RelativeSlow{Multiple: s.Multiple}
		if *s != alone || s.Multiple != Off && s.Multiple != 0 {
			c.refuseIdle(k, "SlowCalls")
		}
		*s = RelativeSlow{Multiple: Off}
		return
	}
	before := len(k.problems)
	s.Multiple = orDefault(s.Multiple, 3)
	s.Quantile = orDefault(s.Quantile, 0.5)
	s.MinSamples = orDefault(s.MinSamples, 20)
	k.multiple("SlowCalls.Multiple", s.Multiple)
	k.within("SlowCalls.Quantile", s.Quantile, 0.05, 0.99, "0.05 to 0.99")
	k.count("SlowCalls.MinSamples", s.MinSamples, maxBreakerCount)
	if s.Window != 0 {
		k.span("SlowCalls.Window", s.Window, 10*time.Millisecond, maxBreakerWindow)
	}
	if !sound || len(k.problems) > before {
		return
	}
	least := 2 * c.SlowRatio * float64(c.Window) / s.Quantile
	switch {
	case k.race("SlowCalls.Window", &s.Window, least, "2 x SlowRatio x Window / SlowCalls.Quantile"):
	case wanted:
		k.tooWide(c.Window, s.Quantile/c.SlowRatio, "x SlowCalls.Quantile / SlowRatio")
	default:
		*s = RelativeSlow{Multiple: Off}
	}
}

// What is normal is learnt over an hour at most, and that must be twice the judged window times what the rule asks for.
const (
	widestJudged = maxBreakerWindow / 2
	orAbsorbed   = "or an incident becomes normal before it is seen"
)

// race makes sure that an incident fills the judged window before it is normal. A default window widens, a written one is
// refused. It reports false where not even an hour would do: whoever asked for the rule is told so, and otherwise it steps
// aside, because no configuration is refused for a value that nobody wrote.
func (k breakerChecker) race(field string, window *time.Duration, least float64, formula string) bool {
	switch {
	case least > float64(maxBreakerWindow):
		return false
	case *window == 0:
		*window = max(5*time.Minute, time.Duration(math.Ceil(least)))
	case float64(*window) < least:
		k.refuse(field, *window, fmt.Sprintf("at least %v (%s), %s", time.Duration(math.Ceil(least)), formula, orAbsorbed))
	}
	return true
}

// tooWide refuses a judged window for which no span of what is normal is long enough. Somebody wrote it: the default is too
// wide only for a written multiple.
func (k breakerChecker) tooWide(window time.Duration, part float64, formula string) {
	most := time.Duration(part * float64(widestJudged))
	k.refuse("Window", window, fmt.Sprintf("at most %v (%v %s), %s", most, widestJudged, formula, orAbsorbed))
}

// refuseIdle refuses settings of a rule that is switched off.
func (c *BreakerConfig) refuseIdle(k breakerChecker, rule string) {
	if c.ConstantsOnly {
		k.refuse("ConstantsOnly", true, "false beside "+rule)
		return
	}
	k.refuse(rule+".Multiple", bare("Off"), "a multiple beside other fields of "+rule)
}

// breakerChecker is a checker that knows the struct whose fields it names.
type breakerChecker struct{ *checker }

func (k breakerChecker) refuse(field string, value any, accepted string) {
	k.checker.refuse("BreakerConfig."+field, value, accepted)
}

func (k breakerChecker) within(field string, x, low, high float64, accepted string) {
	k.checker.within("BreakerConfig."+field, x, low, high, accepted)
}

func (k breakerChecker) count(field string, n, most int) {
	if n < 1 || n > most {
		k.refuse(field, n, fmt.Sprintf("1 to %d", most))
	}
}

func (k breakerChecker) ratio(field string, x float64) {
	if !(x > 0 && x <= 1) {
		k.refuse(field, x, "more than 0, at most 1")
	}
}

func (k breakerChecker) multiple(field string, x float64) {
	if !(x > 1 && x <= maxBreakerMultiple) {
		k.refuse(field, x, fmt.Sprintf("more than 1, at most %d", maxBreakerMultiple))
	}
}

func (k breakerChecker) span(field string, d, least, most time.Duration) bool {
	if d >= least && d <= most {
		return true
	}
	k.refuse(field, d, fmt.Sprintf("%v to %v", least, most))
	return false
}

// law is the part of a resolved configuration that says when to open. Steps are counted even where no measured rule is on:
// the slow rule needs to know how slow calls come together.
func (c BreakerConfig) law() trip.Config {
	t := trip.Config{
		Window: c.Window, MinCalls: c.MinCalls,
		Consecutive: c.ConsecutiveFailures, FailureRatio: c.FailureRatio, SlowRatio: c.SlowRatio,
		NormalWindow: 5 * time.Minute, NormalSamples: 100, SlowSamples: c.SlowCalls.MinSamples,
		ProbeSuccesses: c.ProbeSuccesses,
	}
	if f := c.Failures; f.Multiple != Off {
		t.Multiple, t.Floor, t.NormalWindow, t.NormalSamples = f.Multiple, f.Floor, f.Window, f.MinSamples
	}
	return t
}
