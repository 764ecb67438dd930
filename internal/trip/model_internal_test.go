package trip

import (
	"math"
	"testing"
	"time"
)

// told is one result as the model remembers it.
type told struct {
	at               time.Duration
	fail, slow, late bool
	runs, slowRuns   bool // it begins a run
}

// model is the law in its plainest form: lists of results, recounted for every question.
type model struct {
	c         Config
	born      time.Duration
	newest    time.Duration
	results   []told // of this closed period
	step      []told
	stepBegan time.Duration
	ring      [][]told
	accepted  [][5]float64 // results, failures, runs, slow, runs of slow
	since     []told
	pool      []told
	holding   bool
	tripped   bool
	heldAt    time.Duration
	slowN     float64
	slowF     float64
	slowBurst float64
	outdated  float64
}

func tallyOf(results []told) (n, fail, runs, slow, slowRuns, late float64) {
	for _, r := range results {
		n++
		for _, x := range []struct {
			is bool
			to *float64
		}{{r.fail, &fail}, {r.runs, &runs}, {r.slow, &slow}, {r.slowRuns, &slowRuns}, {r.late, &late}} {
			if x.is {
				*x.to++
			}
		}
	}
	return n, fail, runs, slow, slowRuns, late
}

func (m *model) window(now time.Duration) []told {
	m.newest = max(m.newest, now)
	span := m.c.Window / 10
	first := len(m.results)
	for first > 0 && (m.results[first-1].at-m.born)/span > (m.newest-m.born)/span-10 {
		first--
	}
	return m.results[first:]
}

func (m *model) normal() (n, f float64, warm bool) {
	for _, step := range m.ring {
		sn, sf, _, _, _, _ := tallyOf(step)
		n += sn
		f += sf
	}
	return n, f, n >= float64(m.c.NormalSamples)
}

// long is the sum of all accepted steps, each fading with those after it.
func (m *model) long() (n, fail, runs, slow, slowRuns float64) {
	for i, s := range m.accepted {
		w := math.Pow(1-1.0/120, float64(len(m.accepted)-1-i))
		n, fail, runs, slow, slowRuns = n+w*s[0], fail+w*s[1], runs+w*s[2], slow+w*s[3], slowRuns+w*s[4]
	}
	return n, fail, runs, slow, slowRuns
}

func (m *model) burst(slow bool) float64 {
	n, f, runs, s, slowRuns := m.long()
	if slow {
		f, runs = s, slowRuns
	}
	if n == 0 {
		return 1.5
	}
	return max(1, (f*(1-f/n)+3)/(runs+2))
}

func (m *model) limit() float64 {
	n, f, warm := m.normal()
	switch {
	case m.c.Consecutive < 0:
		return math.Inf(1)
	case m.c.Consecutive > 0:
		return float64(m.c.Consecutive)
	case !warm || m.c.Multiple == 0:
		return 5
	}
	k := 5.0
	ln, lf, _, _, _ := m.long()
	for _, p := range []float64{f / n, lf / ln} {
		if p > 0 {
			k = max(k, min(40, math.Ceil(23*m.burst(false)/math.Log(1/p))))
		}
	}
	return k
}

func modelOver(n, f, usualN, usualF, burst, floor, multiple, near, part float64) bool {
	l := func(x float64) float64 {
		if x == 0 {
			return 0
		}
		return x * math.Log(x)
	}
	if usualN == 0 || multiple == 0 {
		return false
	}
	usual := usualF / usualN
	line := max(floor, min(multiple*usual, (1+usual)/2))
	evidence := l(f) + l(n-f) - l(n) + l(usualF) + l(usualN-usualF) - l(usualN) -
		l(f+usualF) - l(n-f+usualN-usualF) + l(n+usualN)
	return f >= 2 && f/n >= line/near && f/n > usual && evidence >= 16*burst/part
}

func (m *model) overFailures(results []told, near, part float64) bool {
	n, f, _, _, _, _ := tallyOf(results)
	usualN, usualF, _ := m.normal()
	return modelOver(n, f, usualN, usualF, m.burst(false), m.c.Floor, m.c.Multiple, near, part)
}

func (m *model) accept(results []told) {
	m.ring = append(m.ring, results)
	m.ring = m.ring[max(0, len(m.ring)-10):]
	n, fail, runs, slow, slowRuns, _ := tallyOf(results)
	m.accepted = append(m.accepted, [5]float64{n, fail, runs, slow, slowRuns})
}

func joined(a, b []told) []told { return append(append([]told(nil), a...), b...) }

func (m *model) keepOut(c []told, now time.Duration) {
	if !m.holding {
		m.holding, m.since, m.pool, m.heldAt = true, nil, nil, now
	}
	m.since = joined(m.since, c)
	m.pool = joined(m.pool, c)
	if now-m.heldAt >= m.c.NormalWindow && len(m.pool) >= m.c.NormalSamples {
		m.ring, m.holding, m.tripped = nil, false, false
		m.accept(m.pool)
	}
}

func (m *model) maybeEndStep(now time.Duration) {
	_, _, warm := m.normal()
	if float64(len(m.step)) < math.Ceil(float64(m.c.NormalSamples)/10) {
		return
	}
	if warm && 10*(now-m.stepBegan) < min(m.c.NormalWindow, now-m.born) {
		return
	}
	c := m.step
	t := joined(m.since, c)
	suspect := m.overFailures(c, 2, 4)
	if m.holding {
		suspect = suspect || m.overFailures(t, 2, 4) || m.tripped && len(t) < m.c.MinCalls
	}
	if warm && suspect {
		m.keepOut(c, now)
	} else {
		m.holding, m.tripped = false, false
		m.accept(c)
	}
	m.step, m.stepBegan = nil, now
}

func (m *model) tell(r told, now time.Duration) Rule {
	m.newest = max(m.newest, now)
	m.maybeEndStep(now)
	var before told
	if len(m.results) > 0 {
		before = m.results[len(m.results)-1]
	}
	r.at = m.newest
	r.runs = r.fail && !before.fail
	r.slowRuns = r.slow && !before.slow
	m.results = append(m.results, r)
	m.step = append(m.step, r)
	rule := m.judge(r, now)
	if rule != None {
		m.trip(now)
	}
	return rule
}

func (m *model) judge(r told, now time.Duration) Rule {
	w := m.window(now)
	n, f, _, slow, _, late := tallyOf(w)
	enough := n >= float64(m.c.MinCalls)
	if r.fail {
		run := 0.0
		for i := len(m.results) - 1; i >= 0 && m.results[i].fail; i-- {
			run++
		}
		_, _, warm := m.normal()
		t := joined(m.since, m.step)
		switch {
		case run >= m.limit():
			return Run
		case enough && m.c.FailureRatio > 0 && f/n >= m.c.FailureRatio:
			return Ratio
		case warm && enough && m.overFailures(w, 1, 1):
			return Rate
		case warm && m.holding && len(t) >= m.c.MinCalls && m.overFailures(t, 1, 1):
			return Since
		}
	}
	switch {
	case enough && r.late && late/n >= m.c.SlowRatio:
		return SlowThreshold
	case enough && r.slow && modelOver(n, max(0, slow-m.outdated), m.slowN, m.slowF, m.slowBurst, m.c.SlowRatio, 2, 1, 1):
		return SlowRate
	}
	return None
}

func (m *model) trip(now time.Duration) {
	_, _, warm := m.normal()
	switch {
	case warm && m.tripped:
		m.keepOut(m.step, now)
	case warm:
		if !m.holding {
			m.holding, m.heldAt = true, now
		}
		m.tripped, m.pool = true, nil
	}
	m.since, m.step, m.results = nil, nil, nil
}

func (m *model) latency(above, samples float64, now time.Duration) {
	n, f, _, slow, _, _ := tallyOf(m.window(now))
	m.slowN, m.slowF = 0, 0
	if samples-(n-f) >= float64(m.c.SlowSamples) {
		m.slowN = samples - (n - f)
		m.slowF = min(m.slowN, max(0, above-slow))
		m.outdated = max(0, slow-above)
		m.slowBurst = m.burst(true)
	}
}

// FuzzLaw plays the same results to the law, which keeps back what it may, and to the model, which is told one by one.
func FuzzLaw(f *testing.F) {
	f.Add([]byte{0, 0, 1, 2, 3, 4, 5, 6, 7, 8})
	f.Add([]byte{17, 255, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 130, 130, 130, 130, 130, 140, 140, 140})
	for seed := range byte(40) {
		f.Add(noise(seed))
	}
	f.Add([]byte("0A0000000000000000\xf5")) // the clock steps back while cold
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) < 2 || len(script) > 1000 {
			return
		}
		playScript(t, fuzzConfig(script[0], script[1]), script[2:])
	})
}

// noise is a script of calls that mostly succeed, with incidents.
func noise(seed byte) []byte {
	script := []byte{seed * 67, seed * 37}
	x := uint32(seed)*2654435761 + 1
	for i := range 900 {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		op := byte(x>>8) & 0x78 // a success, some time later
		bad := uint32(10)
		if i/75%6 == 2 {
			bad = 120
		}
		switch {
		case i/75%6 == 5: // an outage
			op |= 6
		case x>>24 < bad:
			op |= byte(x) & 7
		}
		script = append(script, op)
	}
	return script
}

func fuzzConfig(a, b byte) Config {
	c := Config{
		Window: time.Duration(1+a&3) * 10 * time.Second, MinCalls: 2 + int(a>>2&7), SlowRatio: 0.5,
		Multiple: 5, Floor: 0.05, NormalWindow: time.Duration(1+b&3) * 20 * time.Second,
		NormalSamples: 15 + int(b>>2&7)*5, SlowSamples: 5,
	}
	switch a >> 6 {
	case 0:
		c.Consecutive = 7
	case 1:
		c.Consecutive = -1
	}
	if b>>5 == 0 {
		c.FailureRatio = 0.4
	}
	if b>>5 == 1 {
		c.Multiple = 0
	}
	return c
}

func playScript(t *testing.T, c Config, script []byte) {
	t.Helper()
	now := 3 * time.Second
	l := New(c, now)
	m := &model{c: c, born: now, newest: now, stepBegan: now}
	held := uint32(0)
	samples := 0.0
	for i, op := range script {
		step := time.Duration(op>>3) * 25 * time.Millisecond
		switch op >> 3 {
		case 31:
			step = 7 * time.Second
		case 30:
			step = -300 * time.Millisecond
		}
		now = max(m.born, now+step)
		var got, want Rule
		switch op & 7 {
		case 0, 1:
			samples++
			want = m.tell(told{}, now)
			if now < l.Due() {
				held++
				continue
			}
			l.Fold(held)
			held = 0
			got = l.Succeed(false, false, now)
		case 2:
			want = m.tell(told{slow: true}, now)
			l.Fold(held)
			held = 0
			got = l.Succeed(true, false, now)
		case 3:
			want = m.tell(told{late: true}, now)
			l.Fold(held)
			held = 0
			got = l.Succeed(false, true, now)
		case 4:
			l.Fold(held)
			held = 0
			l.Latency(uint64(samples/20), uint64(samples), now)
			m.latency(math.Floor(samples/20), samples, now)
		case 5:
			want = m.tell(told{fail: true, late: true}, now)
			l.Fold(held)
			held = 0
			got = l.Fail(true, now)
		default:
			want = m.tell(told{fail: true}, now)
			l.Fold(held)
			held = 0
			got = l.Fail(false, now)
		}
		if got != want {
			t.Fatalf("operation %d: rule is %d, want %d", i, got, want)
		}
		compare(t, &l, m, now, i)
		if got != None {
			if l.Cause().Rule != got {
				t.Fatalf("operation %d: cause is %+v, want rule %d", i, l.Cause(), got)
			}
			now += 5 * time.Second
			l.Closed(now)
			m.stepBegan = now
			m.newest = max(m.newest, now)
		}
	}
}

// compare does not use require: it would take most of the fuzzer's time.
func compare(t *testing.T, l *Law, m *model, now time.Duration, i int) {
	t.Helper()
	n, f, _, slow, _, late := tallyOf(m.window(now))
	calls, failures, slows, lates := l.Window(now)
	want, got := [4]float64{n, f, slow, late}, [4]float64{float64(calls), float64(failures), float64(slows), float64(lates)}
	if want != got {
		t.Fatalf("operation %d: window is %v, want %v", i, got, want)
	}
	limit := m.limit()
	if math.IsInf(limit, 1) {
		limit = 0
	}
	if _, k := l.Consecutive(); float64(k) != limit {
		t.Fatalf("operation %d: limit is %d, want %v", i, k, limit)
	}
	usualN, usualF, warm := m.normal()
	rate, results, gotWarm := l.Normal()
	if gotWarm != warm || warm && (float64(results) != usualN || rate != usualF/usualN) {
		t.Fatalf("operation %d: normal is %v of %d (warm %t), want %v of %v (warm %t)", i, rate, results, gotWarm, usualF/usualN, usualN, warm)
	}
	if l.holding != m.holding || l.tripped != m.tripped {
		t.Fatalf("operation %d: holding and tripped are %t, %t, want %t, %t", i, l.holding, l.tripped, m.holding, m.tripped)
	}
}
