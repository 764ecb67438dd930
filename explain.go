package resilience

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// String returns the headline of Explain.
func (p Policy) String() string {
	if p.p == nil {
		return "no policy: one attempt, no bounds"
	}
	return p.p.headline()
}

// Explain tells in plain text what the policy does: what bounds a call first, how the worst call goes, what load it makes,
// what is measured at the moment, the state of the guards, and the rules. It runs none of the user's code.
func (p Policy) Explain() string {
	if p.p == nil {
		return p.String() + "\n"
	}
	now := p.p.time.now()
	w := p.p.walk(now)
	var b strings.Builder
	b.WriteString(p.p.headline() + "\n\n")
	section(&b, "Bound first by", p.p.firstBound(w))
	section(&b, "Worst case", w.lines()...)
	section(&b, "Load", p.p.load())
	section(&b, "Measured now", p.p.measuredLines(now)...)
	section(&b, "Breaker", p.p.breakerLine())
	section(&b, "Limiter", p.p.limiterLine())
	section(&b, "Classifier", p.p.classifierLines()...)
	return b.String()
}

const notConfigured = "not configured"

// section writes lines under one label, in the layout of the whole text.
func section(b *strings.Builder, label string, lines ...string) {
	label += ":"
	for _, line := range lines {
		b.WriteString(strings.TrimRight(fmt.Sprintf("%-17s%s", label, line), " ") + "\n")
		label = ""
	}
}

func (p *policy) headline() string {
	name := p.name
	if name == "" {
		name = "unnamed policy"
	}
	s := p.set
	return fmt.Sprintf("%s: %s, deadline %s, attempt timeout %s",
		clip(name), count(s.attempts, "attempt"), short(s.deadline), short(s.attemptTimeout))
}

// worstCase is a call in which every attempt takes all that it may, and every backoff is as long as its jitter lets it be.
type worstCase struct {
	rows    []worstRow // the first worstRows of them
	more    bool
	last    worstRow // the last attempt of the walk
	started int      // how many attempts start
	late    bool     // the deadline leaves no room for the next one
}

type worstRow struct {
	what        string
	start, end  time.Duration
	explanation string
	by          boundBy // of attempts
}

const (
	worstRows = 6    // how many rows Explain prints
	worstWalk = 1000 // how many attempts it looks at
)

func (w *worstCase) add(r worstRow) {
	if len(w.rows) < worstRows {
		w.rows = append(w.rows, r)
		return
	}
	w.more = true
}

func (p *policy) walk(now time.Duration) worstCase {
	s := p.set
	var w worstCase
	var at time.Duration
	left, leftBy := s.deadline, byDeadline
	if left == Unbounded {
		leftBy = byNothing
	}
	base := p.measuredBase(s.backoff.Base, now)
	normal := time.Duration(0)
	if b := p.breaker; b != nil {
		normal = b.normalLatency(b.time.now())
	}
	for n := 1; n <= min(s.attempts, worstWalk); n++ {
		if leftBy == byDeadline {
			left = s.deadline - at
		}
		bound, by := p.arm(left, leftBy, now)
		w.started = n
		w.last = worstRow{fmt.Sprintf("attempt %d", n), at, later(at, bound), boundText(bound, by), by}
		w.add(w.last)
		at = w.last.end
		if n == s.attempts || at == never {
			break
		}
		delay := p.longestDelay(base, n+1)
		if leftBy == byDeadline && later(later(at, delay), normal) >= s.deadline {
			w.late = true
			break
		}
		w.add(worstRow{what: "backoff", start: at, end: later(at, delay), explanation: p.delayText(delay)})
		at = later(at, delay)
	}
	return w
}

// longestDelay is the curve at its longest. A curve of the user's is not run: it may be as long as Max.
func (p *policy) longestDelay(base time.Duration, n int) time.Duration {
	b := p.set.backoff
	if b.Delay != nil {
		return b.Max
	}
	b.Jitter = JitterNone
	return b.curve(base, n, 1)
}

func (p *policy) delayText(delay time.Duration) string {
	if p.set.backoff.Delay != nil {
		return "a curve of your own, at most " + short(delay)
	}
	if p.set.backoff.Jitter == JitterNone || delay == 0 {
		return "exactly " + short(delay)
	}
	return fmt.Sprintf("at most %s, %s jitter", short(delay), p.set.backoff.Jitter)
}

func boundText(bound time.Duration, by boundBy) string {
	switch by {
	case byTimeout:
		return "attempt timeout " + short(bound)
	case byCeiling:
		return "measured ceiling " + short(bound)
	case byDeadline:
		return "the " + short(bound) + " left of the deadline"
	}
	return "no bound"
}

func (w worstCase) lines() []string {
	lines := make([]string, 0, worstRows+1)
	for _, r := range w.rows {
		lines = append(lines, fmt.Sprintf("%-11s%8s -> %-8s  %s", r.what, short(r.start), short(r.end), r.explanation))
	}
	if w.more {
		lines = append(lines, "... until "+short(w.last.end))
	}
	return lines
}

// firstBound names what a call runs into first.
func (p *policy) firstBound(w worstCase) string {
	if b := p.breaker; b != nil {
		switch s := b.Stats(); s.State {
		case StateOpen:
			return "the open breaker: nothing is admitted for " + short(s.RetryAfter)
		case StateHalfOpen:
			return "the half-open breaker: only probes are admitted"
		case StateRecovering:
			return "the recovering breaker: only a growing share is admitted"
		case StateIsolated:
			return "the isolated breaker: nothing is admitted until Reset"
		}
	}
	if b := p.budget; b != nil && p.set.attempts > 1 {
		if s := b.Stats(); s.Tokens < 1 {
			return fmt.Sprintf("the spent budget: first attempts only (%s)", s.text())
		}
	}
	return w.firstBound(p.set)
}

// firstBound is what the walk hits.
func (w worstCase) firstBound(s *settings) string {
	took := w.last.end - w.last.start
	switch {
	case w.last.by == byDeadline && s.attemptTimeout > s.deadline && s.attemptTimeout != Unbounded:
		return fmt.Sprintf("deadline: %s gets %s, the attempt timeout of %s never binds%s",
			w.last.what, short(took), short(s.attemptTimeout), w.neverStarted(s.attempts))
	case w.last.by == byDeadline:
		return fmt.Sprintf("deadline: %s gets the %s that are left%s", w.last.what, short(took), w.neverStarted(s.attempts))
	case w.late:
		return "deadline: the backoff leaves no room for another attempt" + w.neverStarted(s.attempts)
	case w.last.by == byNothing:
		return "nothing: an attempt may take for ever"
	case w.last.by == byCeiling && s.attemptTimeout > s.deadline && s.attemptTimeout != Unbounded:
		return fmt.Sprintf("measured ceiling: each attempt gets %s, the attempt timeout of %s never binds", short(took), short(s.attemptTimeout))
	case w.last.by == byCeiling:
		return fmt.Sprintf("measured ceiling: each attempt gets %s of its %s", short(took), short(s.attemptTimeout))
	}
	return fmt.Sprintf("attempt timeout: each attempt gets %s", short(took))
}

func (w worstCase) neverStarted(attempts int) string {
	switch attempts - w.started {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("; attempt %d never starts", attempts)
	}
	return fmt.Sprintf("; attempts %d to %d never start", w.started+1, attempts)
}

// load is how much more than one request a call can make.
func (p *policy) load() string {
	s := p.set
	if s.attempts == 1 {
		return "1x: no retries"
	}
	text := fmt.Sprintf("at most %dx", s.attempts)
	if s.hedge != nil {
		text += ", hedge legs included"
	}
	b := p.budget
	if b == nil {
		return text + fmt.Sprintf("; sustained %dx, there is no budget", s.attempts)
	}
	text += fmt.Sprintf("; sustained %sx", trimmed(1+float64(b.deposit)/tokenUnit))
	if perSecond := b.rate * float64(time.Second) / tokenUnit; perSecond > 0 {
		text += fmt.Sprintf(" and %s/s more", trimmed(perSecond))
	}
	return text + fmt.Sprintf(" (budget: %s)", b.Stats().text())
}

func (p *policy) measuredLines(now time.Duration) []string {
	m, s := p.measured(now), p.set
	var ceiling, backoff, hedge, queue measuredBy
	if s.measuresCeiling {
		ceiling = measuredBy{s.ceiling.Multiple, windowText(s.ceiling.Quantile, s.ceiling.Window, s.ceiling.MinSamples)}
	}
	if b := s.measuredBackoff; b != nil {
		backoff = measuredBy{b.Multiple, windowText(b.Quantile, b.Window, b.MinSamples)}
	}
	if h := s.hedge; h != nil {
		hedge = measuredBy{0, windowText(h.Quantile, h.Window, h.MinSamples)}
	}
	if q := s.saturation; q != nil {
		queue = measuredBy{q.Multiple, fmt.Sprintf("median over 1h, %d samples minimum", q.MinSamples)}
	}
	return []string{
		ceiling.line("attempt ceiling", m.AttemptCeiling),
		backoff.line("backoff base", m.BackoffBase),
		hedge.line("hedge threshold", m.HedgeThreshold),
		queue.line("pool queue delay", m.QueueDelay),
	}
}

// measuredBy is how a term is measured: a multiple, 0 for none, of what a window says.
type measuredBy struct {
	multiple float64
	window   string
}

// line has exactly three forms: a warm value with its configuration, cold, and not configured.
func (by measuredBy) line(name string, r Reading) string {
	value, text := "-", notConfigured
	switch r.State {
	case Cold:
		text = "cold - " + by.window
	case Warm:
		value, text = short(r.Value), by.window
		if by.multiple > 0 {
			text = trimmed(by.multiple) + "x " + text
		}
	}
	return fmt.Sprintf("%-18s%-7s%s", name, value, text)
}

func windowText(quantile float64, window time.Duration, minSamples int) string {
	return fmt.Sprintf("p%s over %s, %d samples minimum", trimmed(100*quantile), short(window), minSamples)
}

func (p *policy) breakerLine() string {
	if p.breaker == nil {
		return notConfigured
	}
	text := p.breaker.explain(p.breaker.time.now())
	if name := p.breaker.config.Name; name != "" {
		text = name + ": " + text
	}
	return text
}

func (p *policy) limiterLine() string {
	if p.limiter == nil {
		return notConfigured
	}
	return p.limiter.explain()
}

func (p *policy) classifierLines() []string {
	lines := make([]string, 0, len(p.set.rules)+1)
	for i, r := range p.set.rules {
		lines = append(lines, fmt.Sprintf("%d. %s: %s", i+1, clip(r.name), r.what))
	}
	return append(lines, "else: nil error -> ok, any other -> permanent")
}

// short writes a duration with three significant digits and without the zeros that package time adds: 5m, 1.97s.
func short(d time.Duration) string {
	if d == Unbounded {
		return "unbounded"
	}
	text := rounded(d).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// rounded is a duration to three significant digits, or to the second from a minute on.
func rounded(d time.Duration) time.Duration {
	if d >= time.Minute {
		return d.Round(time.Second)
	}
	unit := time.Duration(1)
	for unit <= d/1000 {
		unit *= 10
	}
	return d.Round(unit)
}

// trimmed writes a number without needless digits.
func trimmed(x float64) string { return strconv.FormatFloat(x, 'g', 4, 64) }

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}
