// Command breaker plays simulated traffic to the rule by which a circuit breaker opens, and to the plain multiple of the
// baseline that it replaces. It prints how often each opens on nothing, how soon on an incident, and what a breaker makes
// of a dependency that has changed for good.
//
//	go run ./bench/breaker -days 30 -seeds 5 -incidents 100 -traffic 0.5,1,10
//
// The same flags give the same tables.
package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/measuredgo/resilience/internal/trip/tripsim"
)

type settings struct {
	days      float64
	seeds     int
	incidents int
	traffic   []float64 // calls a second
}

func main() {
	var s settings
	flag.Float64Var(&s.days, "days", 10, "simulated days per seed at up to one call a second; fewer where there are more calls")
	flag.IntVar(&s.seeds, "seeds", 5, "runs per cell of the table of wrong trips")
	flag.IntVar(&s.incidents, "incidents", 100, "incidents per cell of the table of detection times")
	traffic := flag.String("traffic", "0.1,0.5,1,10,100", "calls a second, separated by commas")
	flag.Parse()
	for _, field := range strings.Split(*traffic, ",") {
		perSecond, err := strconv.ParseFloat(strings.TrimSpace(field), 64)
		if err != nil || !(perSecond >= 0.01 && perSecond <= 10_000) {
			fmt.Fprintf(os.Stderr, "breaker: -traffic has %q, want numbers from 0.01 to 10000\n", field)
			os.Exit(2)
		}
		s.traffic = append(s.traffic, perSecond)
	}
	if !(s.days > 0 && s.days <= 10_000) || s.seeds < 1 || s.incidents < 1 {
		fmt.Fprintln(os.Stderr, "breaker: -days, -seeds and -incidents must be positive")
		os.Exit(2)
	}
	s.wrongTrips()
	s.wrongSlowTrips()
	s.detection()
	s.newNormal()
}

// rule is one column of a comparison.
type rule struct {
	name string
	make func() tripsim.Rule
}

var (
	starting    = rule{"starting", func() tripsim.Rule { return tripsim.NewStarting() }}
	recommended = rule{"recommended", func() tripsim.Rule { return tripsim.NewRecommended(false) }}
	withSlow    = rule{"recommended", func() tripsim.Rule { return tripsim.NewRecommended(true) }}
)

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, "\r\x1b[K"+format, args...) }

func (s *settings) head(title, first string) {
	progress("")
	fmt.Printf("\n%s\n\n| %s |", title, first)
	for _, perSecond := range s.traffic {
		fmt.Printf(" %v/s |", perSecond)
	}
	fmt.Printf("\n|%s\n", strings.Repeat("---|", len(s.traffic)+1))
}

// perDay returns wrong trips a day.
func (s *settings) perDay(r rule, t tripsim.Traffic) float64 {
	days := s.days / max(1, t.PerSecond)
	trips := 0
	for seed := range s.seeds {
		trips += tripsim.WrongTrips(r.make(), t, days, uint64(seed))
	}
	return float64(trips) / (days * float64(s.seeds))
}

func (s *settings) wrongTrips() {
	s.head("Wrong trips a day: independent failures / bursts of three", "normal failures, rule")
	for _, failing := range []float64{0, 0.001, 0.01, 0.04, 0.1, 0.3} {
		for _, r := range []rule{starting, recommended} {
			row := fmt.Sprintf("| %g %%, %s |", 100*failing, r.name)
			for _, perSecond := range s.traffic {
				progress("wrong trips: %s %v/s", row, perSecond)
				t := tripsim.Traffic{PerSecond: perSecond, Failing: failing}
				alone := s.perDay(r, t)
				t.Burst = 3
				row += fmt.Sprintf(" %.3g / %.3g |", alone, s.perDay(r, t))
			}
			progress("")
			fmt.Println(row)
		}
	}
}

// wrongSlowTrips simulates a fifth of the days: reading the estimator every second takes most of the time.
func (s *settings) wrongSlowTrips() {
	short := *s
	short.days /= 5
	s.head("Wrong trips a day over slow calls, recommended rule", "latencies")
	for _, l := range []struct {
		name    string
		latency func(*rand.Rand) time.Duration
	}{
		{"lognormal, sigma 1", tripsim.Lognormal(1, 1)},
		{"lognormal, sigma 1.5", tripsim.Lognormal(1.5, 1)},
		{"45 % ten times slower", tripsim.TwoModes()},
	} {
		row := "| " + l.name + " |"
		for _, perSecond := range s.traffic {
			progress("wrong slow trips: %s %v/s", row, perSecond)
			row += fmt.Sprintf(" %.3g |", short.perDay(withSlow, tripsim.Traffic{PerSecond: perSecond, Latency: l.latency}))
		}
		progress("")
		fmt.Println(row)
	}
}

func (s *settings) detection() {
	failing := func(share float64) tripsim.Traffic { return tripsim.Traffic{Failing: share} }
	slow := func(sigma, factor float64) tripsim.Traffic {
		return tripsim.Traffic{Latency: tripsim.Lognormal(sigma, factor)}
	}
	s.head("Median seconds to the trip (per cent seen in 5 min or 60 calls, where below 100)", "incident, rule")
	for _, c := range []struct {
		name             string
		normal, incident tripsim.Traffic
		rules            []rule
	}{
		{"outage, normal 0", failing(0), failing(1), []rule{starting, recommended}},
		{"outage, normal 1 %", failing(0.01), failing(1), []rule{starting, recommended}},
		{"outage, normal 30 %", failing(0.3), failing(1), []rule{starting, recommended}},
		{"50 % fail, normal 1 %", failing(0.01), failing(0.5), []rule{starting, recommended}},
		{"10 x of 1 %", failing(0.01), failing(0.1), []rule{starting, recommended}},
		{"5 x of 1 %, on the line", failing(0.01), failing(0.05), []rule{starting, recommended}},
		{"10 x of 4 %", failing(0.04), failing(0.4), []rule{starting, recommended}},
		{"all x 10, sigma 0.5", slow(0.5, 1), slow(0.5, 10), []rule{withSlow}},
		{"all x 4, sigma 0.5", slow(0.5, 1), slow(0.5, 4), []rule{withSlow}},
		{"all x 10, sigma 1.5", slow(1.5, 1), slow(1.5, 10), []rule{withSlow}},
		{"all x 4, sigma 1.5", slow(1.5, 1), slow(1.5, 4), []rule{withSlow}},
	} {
		for _, r := range c.rules {
			row := fmt.Sprintf("| %s, %s |", c.name, r.name)
			for _, perSecond := range s.traffic {
				progress("detection: %s %v/s", row, perSecond)
				c.normal.PerSecond, c.incident.PerSecond = perSecond, perSecond
				row += " " + s.detected(r, c.normal, c.incident) + " |"
			}
			progress("")
			fmt.Println(row)
		}
	}
}

func (s *settings) detected(r rule, normal, incident tripsim.Traffic) string {
	incidents := s.incidents
	if normal.PerSecond > 10 {
		incidents = max(1, incidents/4)
	}
	limit := max(5*time.Minute, time.Duration(60/normal.PerSecond*float64(time.Second)))
	median, within := tripsim.Median(r.make, normal, incident, incidents, limit)
	text := "-"
	switch {
	case within == 0:
		return "never"
	case median < time.Hour:
		text = fmt.Sprintf("%.2g", median.Seconds())
		if median >= 10*time.Second {
			text = fmt.Sprintf("%.0f", median.Seconds())
		}
	}
	if within < 1 {
		text += fmt.Sprintf(" (%.0f)", 100*within)
	}
	return text
}

// newNormal shows what is admitted, and how often the breaker trips, in each five minutes after a change for good.
func (s *settings) newNormal() {
	const minutes, step = 40, 5
	progress("")
	fmt.Printf("\nChange for good from 1 %% at 10/s, recommended rule: per cent admitted (trips) in each 5 minutes\n\n| to |")
	for from := 0; from < minutes; from += step {
		fmt.Printf(" %d-%d |", from, from+step)
	}
	fmt.Printf("\n|%s\n", strings.Repeat("---|", minutes/step+1))
	for _, share := range []float64{0.2, 0.4} {
		var sums [minutes / step]tripsim.Minute
		const runs = 20
		for seed := range uint64(runs) {
			progress("new normal: %v, run %d", share, seed)
			played := tripsim.Play(recommended.make(), tripsim.Traffic{PerSecond: 10}, func(at time.Duration) float64 {
				if at > 0 {
					return share
				}
				return 0.01
			}, minutes, seed)
			for i := range sums {
				m := tripsim.Sum(played, i*step, (i+1)*step)
				sums[i].Calls += m.Calls
				sums[i].Admitted += m.Admitted
				sums[i].Trips += m.Trips
			}
		}
		progress("")
		fmt.Printf("| %g %% |", 100*share)
		for _, m := range sums {
			fmt.Printf(" %.0f (%.1f) |", 100*float64(m.Admitted)/float64(m.Calls), float64(m.Trips)/runs)
		}
		fmt.Println()
	}
}
