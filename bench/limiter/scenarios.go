package main

import (
	"fmt"
	"math"
	"time"

	"github.com/measuredgo/resilience/internal/limit"
	"github.com/measuredgo/resilience/internal/limit/limitsim"
)

const (
	base      = limitsim.Base
	unbounded = math.MaxFloat64
)

// group is a set of scenarios around one question.
type group struct {
	name    string
	measure func(first uint64, seeds int) []row
}

var groups = []group{
	{"one client", oneClient},
	{"half an hour of overload", longOverload},
	{"lasting change", lastingChange},
	{"fast failures", fastFailures},
	{"cache hits", cacheHits},
	{"idle", idle},
	{"many clients", manyClients},
	{"clients come and go", comeAndGo},
}

var models = []limitsim.Model{limitsim.Exact, limitsim.Exponential, limitsim.LogNormal}

// forSeeds calls run once for each seed. Only the dither is left to chance in the exact model: one seed will do.
func forSeeds(m limitsim.Model, first uint64, n int, run func(seed uint64)) {
	if m.Exact {
		n = 1
	}
	for i := range n {
		run(first + uint64(i))
	}
}

// run is a simulation of the law. Its cores are there to be looked at.
type run struct {
	*limitsim.Simulation
	cores []*limit.Core
}

// start has the load in the hands of clients that start together.
func start(l limitsim.Load, seed uint64, clients int) *run {
	r := &run{}
	r.Simulation = limitsim.New(l, seed, func(client int) limitsim.Limiter {
		c := limit.New(limit.Config{Initial: 20, Min: 1, Max: 200, Seed: seed<<16 + uint64(client)})
		r.cores = append(r.cores, c)
		return c
	})
	r.Join(clients)
	return r
}

// best is the best fixed limit of one client: the smallest with at least 98 % of the goodput of the largest. More
// callers never get less done, so that it can be found by halving.
func best(l limitsim.Load, seed uint64, from, to time.Duration) (int, limitsim.Report) {
	low, high := 1, 2*l.Capacity
	report := l.MeasureFixed(seed, high, from, to)
	enough := 0.98 * report.Goodput
	for low < high {
		middle := (low + high) / 2
		if r := l.MeasureFixed(seed, middle, from, to); r.Goodput >= enough {
			high, report = middle, r
		} else {
			low = middle + 1
		}
	}
	return high, report
}

// table collects rows in the order in which their figures are first reported.
type table []row

func (t *table) add(scenario, figure string, low, high, value float64) {
	for i := range *t {
		if r := &(*t)[i]; r.scenario == scenario && r.figure == figure {
			r.values = append(r.values, value)
			return
		}
	}
	*t = append(*t, row{scenario, figure, low, high, []float64{value}})
}

// steady compares one client in overload with the best fixed limit, in minutes 2 to 3.
func (t *table) steady(name string, l limitsim.Load, first uint64, seeds int) {
	const from, to = 2 * time.Minute, 3 * time.Minute
	forSeeds(l.Model, first, seeds, func(seed uint64) {
		s := start(l, seed, 1)
		s.Run(from)
		got := s.Measure(to)
		n, ideal := best(l, seed, from, to)
		t.add(name, "goodput / best fixed", 0.95, unbounded, got.Goodput/ideal.Goodput)
		t.add(name, "p99 / best fixed", 0, 1.5, float64(got.P99)/float64(ideal.P99))
		t.add(name, "limit / best fixed", 0.7, 1.3, got.Limit/float64(n))
	})
}

func oneClient(first uint64, seeds int) []row {
	var t table
	for _, m := range models {
		for _, capacity := range []int{5, 20, 100} {
			name := fmt.Sprintf("%s, C %d", m.Name, capacity)
			t.steady(name, limitsim.Load{Model: m, Capacity: capacity, Callers: 5 * capacity}, first, seeds)
		}
	}
	return t
}

func cacheHits(first uint64, seeds int) []row {
	var t table
	for _, hits := range []float64{0.05, 0.2, 0.5} {
		slow := limitsim.LogNormalService(100*time.Millisecond, 0.2)
		l := limitsim.Load{Model: limitsim.Model{Service: limitsim.Cached(hits, slow)}, Capacity: 20, Callers: 100}
		t.steady(fmt.Sprintf("%.0f %% hits of 1 ms", 100*hits), l, first, seeds)
	}
	return t
}

func longOverload(first uint64, seeds int) []row {
	var t table
	for _, m := range models {
		forSeeds(m, first, seeds, func(seed uint64) {
			name := m.Name + ", C 20, 30 min"
			s := start(limitsim.Load{Model: m, Capacity: 20, Callers: 100}, seed, 1)
			s.Run(29 * time.Minute)
			got := s.Measure(30 * time.Minute)
			t.add(name, "limit / C at the end", 0.8, 1.4, got.Limit/20)
			t.add(name, "baseline / true", 0.75, 1.25, s.cores[0].Baseline().Seconds()/base.Seconds())
		})
	}
	m := models[1]
	forSeeds(m, first, seeds, func(seed uint64) {
		s := start(limitsim.Load{Model: m, Capacity: 100, Callers: 60}, seed, 10)
		s.Run(29 * time.Minute)
		t.add(m.Name+", ten clients, C 100, 30 min", "sum of limits / C", 0.7, 1.3, s.Measure(30*time.Minute).Limit/100)
	})
	return t
}

func lastingChange(first uint64, seeds int) []row {
	var t table
	const from, to = 5 * time.Minute, 15 * time.Minute
	for _, m := range models {
		for _, factor := range []float64{4, 1.4, 0.25} {
			l := limitsim.Load{Model: m, Capacity: 20, Callers: 40}
			forSeeds(m, first, seeds, func(seed uint64) {
				name := fmt.Sprintf("%s, C 20, latency x %g", m.Name, factor)
				s := start(l, seed, 1)
				s.Run(from)
				s.Slowdown = factor
				way := s.Measure(to - time.Minute)
				end := s.Measure(to)
				t.add(name, "limit / C after 10 min", 0.8, 3, end.Limit/20)
				t.add(name, "baseline / true", 0.75, 1.25, s.cores[0].Baseline().Seconds()/(factor*base.Seconds()))
				t.add(name, "goodput / capacity on the way", 0.9, unbounded, way.Goodput*factor*base.Seconds()/20)
			})
		}
	}
	m := models[1]
	forSeeds(m, first, seeds, func(seed uint64) {
		s := start(limitsim.Load{Model: m, Capacity: 100, Callers: 60}, seed, 10)
		s.Run(from)
		s.Slowdown = 4
		s.Run(to - time.Minute)
		t.add(m.Name+", ten clients, C 100, latency x 4", "sum of limits / C after 10 min", 0.7, 1.3, s.Measure(to).Limit/100)
	})
	return t
}

func fastFailures(first uint64, _ int) []row {
	var t table
	const name = "10 s of failures in 1 ms"
	s := start(limitsim.Load{Model: models[0], Capacity: 20, Callers: 40}, first, 1)
	core := s.cores[0]
	s.Run(time.Minute)
	s.Ending = limitsim.Fail
	s.Run(61 * time.Second) // the calls of before have ended
	limit, baseline := core.Limit(), core.Baseline()
	s.Run(70 * time.Second)
	t.add(name, "limit / before", 1, 1, core.Limit()/limit)
	s.Ending = limitsim.Succeed
	s.Run(75 * time.Second)
	t.add(name, "limit 5 s later / before", 0.8, unbounded, core.Limit()/limit)
	t.add(name, "baseline 5 s later / before", 0.9, 1.1, core.Baseline().Seconds()/baseline.Seconds())
	return t
}

func idle(first uint64, seeds int) []row {
	var t table
	s := start(limitsim.Load{Model: limitsim.Model{Service: limitsim.Constant(10 * time.Millisecond)}, Callers: 2}, first, 1)
	r := s.Measure(20 * time.Minute)
	t.add("two callers, 20 min", "least limit", 20, 20, r.Low)
	t.add("two callers, 20 min", "largest limit", 20, 20, r.Top)
	pareto := limitsim.Model{Name: "Pareto 1.5", Service: limitsim.Pareto(base, 1.5)}
	for _, m := range []limitsim.Model{models[2], pareto} {
		forSeeds(m, first, seeds, func(seed uint64) {
			s := start(limitsim.Load{Model: m, Callers: 40}, seed, 1)
			s.Run(2 * time.Minute)
			t.add(m.Name+", 40 callers, no load", "mean limit", 38, unbounded, s.Measure(10*time.Minute).Limit)
		})
	}
	return t
}

func manyClients(first uint64, seeds int) []row {
	var t table
	for _, m := range models {
		for _, c := range []struct{ clients, capacity int }{{10, 100}, {50, 300}, {50, 100}} {
			forSeeds(m, first, seeds, func(seed uint64) {
				s := start(limitsim.Load{Model: m, Capacity: c.capacity, Callers: 60}, seed, c.clients)
				s.Run(2 * time.Minute)
				name := fmt.Sprintf("%s, %d clients together, C %d", m.Name, c.clients, c.capacity)
				t.add(name, "sum of limits / C", 0.7, 1.3, s.Measure(4*time.Minute).Limit/float64(c.capacity))
			})
		}
	}
	return t
}

func comeAndGo(first uint64, seeds int) []row {
	var t table
	for _, m := range models {
		for _, capacity := range []int{300, 100} {
			forSeeds(m, first, seeds, func(seed uint64) {
				s := start(limitsim.Load{Model: m, Capacity: capacity, Callers: 60}, seed, 10)
				s.Run(3 * time.Minute)
				s.Join(40)
				s.Run(6 * time.Minute)
				name := fmt.Sprintf("%s, 10 to 50 clients, C %d", m.Name, capacity)
				t.add(name, "sum of limits / C", 0.7, 1.3, s.Measure(8*time.Minute).Limit/float64(capacity))
			})
		}
		forSeeds(m, first, seeds, func(seed uint64) {
			s := start(limitsim.Load{Model: m, Capacity: 300, Callers: 60}, seed, 50)
			s.Run(3 * time.Minute)
			s.Leave(40)
			s.Run(6 * time.Minute)
			t.add(m.Name+", 50 to 10 clients, C 300", "sum of limits / C", 0.7, 1.3, s.Measure(8*time.Minute).Limit/300)
		})
	}
	return t
}
