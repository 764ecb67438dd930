package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/measuredgo/resilience"
)

// report prints, in at most 100 columns.
type report struct {
	*show
	out         io.Writer
	terminal    bool // beneath the newest row there is a line of progress, which the next one overwrites
	steps, done int
	row         func(*phase) // prints what happened in the last step

	atEnd map[string][2]resilience.Reading // both ceilings of the second act, at the end of each phase
}

func newReport(out io.Writer, s *show) *report {
	r := &report{show: s, out: out, atEnd: map[string][2]resilience.Reading{}}
	for _, act := range [][]phase{s.first, s.second} {
		for _, p := range act {
			r.steps += int(p.lasts / s.step)
		}
	}
	if f, ok := out.(*os.File); ok {
		info, err := f.Stat()
		r.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return r
}

// unit is the heading of the column that counts the rows.
func (r *report) unit() string {
	if r.step == time.Second {
		return "sec"
	}
	return r.step.String()
}

// print writes one line in place of the line of progress.
func (r *report) print(format string, args ...any) {
	if r.terminal {
		fmt.Fprint(r.out, "\r\x1b[K")
	}
	fmt.Fprintln(r.out, strings.TrimRight(fmt.Sprintf(format, args...), " "))
}

func (r *report) progress() {
	if r.terminal && r.done < r.steps {
		const width = 60
		full := width * r.done / r.steps
		left := time.Duration(r.steps-r.done) * r.step
		fmt.Fprintf(r.out, "[%s%s] %v left", strings.Repeat("#", full), strings.Repeat(".", width-full), left)
	}
}

// begin sets what a row is: the cells after those that all rows have.
func (r *report) begin(form string, cells func(*phase) []any) {
	r.row = func(p *phase) {
		r.done++
		r.print("%5s %-8s"+form, append([]any{fmt.Sprintf("%d/%d", r.done, r.steps), p.name}, cells(p)...)...)
		r.progress()
	}
}

func (r *report) phases(act []phase) {
	for _, p := range act {
		r.print("  %-9s %5v  %s", p.name, p.lasts, p.about)
	}
}

func (r *report) firstAct(plain, guarded *lane) {
	r.print("ACT 1: the dependency has a bad time. Each lane makes %d calls/s; a caller waits at most %v.", rate, r.patience)
	r.phases(r.first)
	r.print("")
	r.print("  ok       calls answered in time, per second    sent     requests sent, per second")
	r.print("  p50 p99  ms that callers waited for an answer  retry    retries per second, with those that the")
	r.print("           or for an error                                own limit then kept from being sent")
	r.print("  limit    requests that may be in flight        hedge    second requests raced against slow ones")
	r.print("  ceiling  ms that an attempt may take: 3 x p95  hedge@   ms after which a request counts as slow")
	r.print("                                                 queue    ms that a goroutine waits for a CPU")
	r.print("")
	const form = "|%4s %4s %4s |%4s %4s %4s %4s %5s %5s |%7s %6s %5s %9s %5s"
	r.print("%14s|%-15s|%-32s|%s", "", " no policy", " with the policy", " what the policy knows and does")
	r.print("%5s %-8s"+form, r.unit(), "phase", "ok", "p50", "p99", "ok", "p50", "p99", "sent", "retry", "hedge",
		"ceiling", "hedge@", "limit", "breaker", "queue")
	a, b := meter{lane: plain}, meter{lane: guarded}
	r.begin(form, func(*phase) []any {
		a.advance()
		b.advance()
		m, limiter, breaker := guarded.policy.Measured(), guarded.policy.Limiter(), guarded.policy.Breaker()
		return []any{
			r.rate(a.now.answered), ms(a.now.p50), ms(a.now.p99),
			r.rate(b.now.answered), ms(b.now.p50), ms(b.now.p99), r.rate(b.sent), r.rate(b.retries), r.rate(b.hedges),
			reading(m.AttemptCeiling), reading(m.HedgeThreshold), fmt.Sprint(limiter.Stats().Limit), breaker.State(),
			reading(m.QueueDelay),
		}
	})
}

// compare is the table that the first act ends with.
func (r *report) compare(plain, guarded *lane) {
	const form = "  %-9s|%10s %10s |%10s %10s |%10s %10s"
	r.print("")
	r.print("  %-9s|%-22s|%-22s|%s", "calls of", " answered in time", " p99 in ms", " requests sent per call")
	r.print(form, "phase", "no policy", "policy", "no policy", "policy", "no policy", "policy")
	line := func(name string, p *phase) {
		a, b := summarize(plain.ended(0), p), summarize(guarded.ended(0), p)
		r.print(form, name, percent(a.share()), percent(b.share()), ms(a.p99), ms(b.p99),
			fmt.Sprintf("%.2f", a.perCall()), fmt.Sprintf("%.2f", b.perCall()))
	}
	for i := range r.first {
		line(r.first[i].name, &r.first[i])
	}
	line("ALL", nil)
	r.print("")
	r.print("What Explain() says about the policy now:")
	r.print("")
	for line := range strings.Lines(guarded.policy.Explain()) {
		r.print("  %s", wrapped(strings.TrimRight(line, "\n"), 98, "\n"+strings.Repeat(" ", 2+17)))
	}
	r.print("")
}

func (r *report) secondAct(with, without *lane) {
	r.print("ACT 2: this process has a bad time, the dependency has none. The same policy twice, once without")
	r.print("WithSaturation. To see only what they measure, both have one attempt and no guards.")
	r.phases(r.second)
	r.print("")
	const form = "|%6s |%8s %5s %5s %5s |%8s %5s %5s %5s"
	r.print("%14s|%7s|%-27s|%s", "", "", " with WithSaturation", " without it")
	r.print("%5s %-8s"+form, r.unit(), "phase", "queue", "ceiling", "ok", "p50", "p99", "ceiling", "ok", "p50", "p99")
	a, b := meter{lane: with}, meter{lane: without}
	r.begin(form, func(p *phase) []any {
		a.advance()
		b.advance()
		m, n := with.policy.Measured(), without.policy.Measured()
		r.atEnd[p.name] = [2]resilience.Reading{m.AttemptCeiling, n.AttemptCeiling}
		return []any{
			reading(m.QueueDelay), reading(m.AttemptCeiling), r.rate(a.now.answered), ms(a.now.p50), ms(a.now.p99),
			reading(n.AttemptCeiling), r.rate(b.now.answered), ms(b.now.p50), ms(b.now.p99),
		}
	})
}

// lesson says what the starved seconds did to the ceilings of the second act.
func (r *report) lesson() {
	before, after := r.atEnd[r.second[0].name], r.atEnd[r.second[len(r.second)-1].name]
	r.print("")
	r.print("Calls suffer in both lanes while the process is starved: the switch protects what is learned from")
	r.print("them. Attempt ceiling in ms, before -> after; what is wrong in it stays for five minutes:")
	for i, name := range []string{"with WithSaturation", "without it"} {
		was, is := before[i], after[i]
		r.print("  %-20s %4s -> %4s  (x %.1f)", name, reading(was), reading(is), float64(is.Value)/float64(max(was.Value, 1)))
	}
}

// meter tells what happened in a lane since the last row.
type meter struct {
	*lane
	now                   summary
	sent, retries, hedges int

	seen                           int
	allSent, allRetries, allHedges int64
}

func (m *meter) advance() {
	calls := m.ended(m.seen)
	m.seen += len(calls)
	m.now = summarize(calls, nil)
	m.sent = since(&m.allSent, m.lane.sent.Load())
	m.retries = since(&m.allRetries, m.lane.retries.Load())
	m.hedges = since(&m.allHedges, m.lane.hedges.Load())
}

func since(last *int64, now int64) int {
	d := now - *last
	*last = now
	return int(d)
}

// rate is a number per second.
func (r *report) rate(n int) string { return fmt.Sprintf("%.0f", float64(n)/r.step.Seconds()) }

func reading(m resilience.Reading) string {
	switch m.State {
	case resilience.Warm:
		return ms(m.Value)
	case resilience.Cold:
		return "cold"
	}
	return "-"
}

func ms(d time.Duration) string {
	v := d.Seconds() * 1000
	if v < 9.95 {
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

func percent(share float64) string { return fmt.Sprintf("%.1f%%", 100*share) }

// wrapped breaks a line that is too long at a space.
func wrapped(line string, width int, with string) string {
	if len(line) <= width {
		return line
	}
	at := strings.LastIndexByte(line[:width], ' ')
	if at < width/2 {
		return line
	}
	return line[:at] + with + wrapped(line[at+1:], width-len(with)+2, with)
}
