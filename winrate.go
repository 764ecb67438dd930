package resilience

import (
	"math"
	"sync"
	"time"
)

// WinRate stops hedges that do not help: while fewer than Minimum of the hedges of the last Window won, the share that may
// start is halved each quarter of the window, down to MinAllowance; otherwise, and while there are fewer than MinSamples, it
// returns by 0.25. A zero field means the default, except Minimum.
type WinRate struct {
	Minimum      float64       // more than 0, at most 1
	Window       time.Duration // default 1 min
	MinSamples   int           // default 10
	MinAllowance float64       // default 0.05
}

func (w WinRate) resolve(c *checker) WinRate {
	w.Window = orDefault(w.Window, time.Minute)
	w.MinSamples = orDefault(w.MinSamples, 10)
	w.MinAllowance = orDefault(w.MinAllowance, 0.05)
	c.within("WinRate.Minimum", w.Minimum, math.SmallestNonzeroFloat64, 1, "more than 0 and at most 1, beside other fields of WinRate")
	if w.Window < 4 {
		c.refuse("WinRate.Window", w.Window, "at least 4ns")
	}
	c.atLeast("WinRate.MinSamples", w.MinSamples, 1)
	c.within("WinRate.MinAllowance", w.MinAllowance, math.SmallestNonzeroFloat64, 1, "more than 0 and at most 1")
	return w
}

// winRate is what a policy knows about the hedges of all of its calls, if it asks whether they help. A nil one allows all.
type winRate struct {
	settings WinRate

	mu        sync.Mutex // guards what is beneath
	quarters  [4]struct{ started, won int }
	quarter   int64 // the number of the current quarter of the window
	allowance float64
	credit    float64 // spreads an allowance evenly
}

func newWinRate(w WinRate, now time.Duration) *winRate {
	return &winRate{settings: w, allowance: 1, quarter: int64(now / (w.Window / 4))}
}

// allows reports whether one more hedge may start.
func (w *winRate) allows(now time.Duration) bool {
	if w == nil {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.turnLocked(now)
	w.credit += w.allowance
	if w.credit < 1 {
		return false
	}
	w.credit--
	return true
}

// count books hedges that started or won.
func (w *winRate) count(started, won int, now time.Duration) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.turnLocked(now)
	w.quarters[0].started += started
	w.quarters[0].won += won
}

// turnLocked judges each quarter of the window that has passed; after eight the allowance is whole again. A clock that
// steps back changes nothing.
func (w *winRate) turnLocked(now time.Duration) {
	current := int64(now / (w.settings.Window / 4))
	for passed := min(current-w.quarter, 8); passed > 0; passed-- {
		started, won := 0, 0
		for _, q := range w.quarters {
			started += q.started
			won += q.won
		}
		if started >= w.settings.MinSamples && float64(won) < w.settings.Minimum*float64(started) {
			w.allowance = max(w.settings.MinAllowance, w.allowance/2)
		} else {
			w.allowance = min(1, w.allowance+0.25)
		}
		copy(w.quarters[1:], w.quarters[:])
		w.quarters[0].started, w.quarters[0].won = 0, 0
	}
	w.quarter = max(w.quarter, current)
}
