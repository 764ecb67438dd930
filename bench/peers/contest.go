package main

import (
	"runtime"
	"slices"
	"strings"
	"time"
)

// side is the column of a contestant.
type side int

const (
	floorSide side = iota // written by hand
	peerSide              // the other libraries and compositions of them; the fastest one is shown
	failsafeSide
	oursSide
	sides
)

// contestant is one way to do what a row says.
type contestant struct {
	name  string
	side  side
	part  bool // does only a part of what the row says: listed, never shown as the best
	start func() (run func(n int), stop func())
}

// row is one line of the table.
type row struct {
	name        string
	goal        string
	met         func(r result) bool // nil: no goal
	contestants []contestant
}

// score is what was measured of a contestant.
type score struct {
	contestant
	row    int
	exact  float64 // nanoseconds per operation
	bytes  int
	allocs int

	run   func(n int)
	stop  func()
	n     int
	times []float64
}

// result is a row with its scores, at most one for each column.
type result struct {
	row
	all  []*score
	best [sides]*score
}

func (r result) ours() *score  { return r.best[oursSide] }
func (r result) floor() *score { return r.best[floorSide] }

// contest measures all contestants of all rows in rounds. Each round measures every one of them briefly, and starts at
// another place of the list, so that a slow minute falls on everybody. Of the rounds, statistic picks what counts.
func contest(rows []row, rounds int, each time.Duration, statistic func([]float64) float64) []result {
	var field []*score
	for i, r := range rows {
		for _, c := range r.contestants {
			s := &score{contestant: c, row: i, stop: func() {}}
			run, stop := c.start()
			s.run = run
			if stop != nil {
				s.stop = stop
			}
			s.prepare(each)
			field = append(field, s)
		}
	}
	for round := range rounds {
		from := round * len(field) / rounds
		for i := range field {
			field[(from+i)%len(field)].measure()
		}
	}
	results := make([]result, len(rows))
	for i, r := range rows {
		results[i].row = r
	}
	for _, s := range field {
		s.stop()
		s.exact = statistic(s.times)
		r := &results[s.row]
		r.all = append(r.all, s)
		if best := r.best[s.side]; !s.part && (best == nil || s.exact < best.exact) {
			r.best[s.side] = s
		}
	}
	return results
}

// prepare warms up, finds how many operations fill the time, and counts the allocations.
func (s *score) prepare(each time.Duration) {
	s.run(200) // what is measured becomes warm
	n := 100
	for {
		took := clocked(s.run, n)
		if took > each/4 || n > 1<<26 {
			s.n = max(1, int(float64(n)*float64(each)/float64(max(took, 1))))
			break
		}
		n *= 4
	}
	s.bytes, s.allocs = allocations(s.run, min(s.n, 2000))
}

// measure first runs a little, unmeasured: the contestant before may have left the processor cold for this one.
func (s *score) measure() {
	s.run(max(1, s.n/8))
	s.times = append(s.times, float64(clocked(s.run, s.n))/float64(s.n))
}

func clocked(run func(n int), n int) time.Duration {
	began := time.Now()
	run(n)
	return time.Since(began)
}

// allocations counts what n operations allocate, on all goroutines, per operation and rounded: the least of three counts,
// since the process around them allocates now and then.
func allocations(run func(n int), n int) (bytes, count int) {
	bytes, count = 1<<62, 1<<62
	for range 3 {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		run(n)
		runtime.ReadMemStats(&after)
		bytes = min(bytes, rounded(after.TotalAlloc-before.TotalAlloc, n))
		count = min(count, rounded(after.Mallocs-before.Mallocs, n))
	}
	return bytes, count
}

func rounded(total uint64, n int) int { return (int(total) + n/2) / n }

func median(xs []float64) float64 {
	if len(xs) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(xs))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

func containing(rows []row, text string) []row {
	return slices.DeleteFunc(rows, func(r row) bool { return !strings.Contains(r.name, text) })
}
