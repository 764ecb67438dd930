package resilience

import (
	"time"

	"github.com/measuredgo/resilience/internal/poolprobe"
)

// Saturation stops a policy from learning while this process is the slow one: as long as a goroutine that is ready to run
// waits longer than Multiple × this process's normal wait, and longer than Floor, the policy stops feeding the attempt
// ceiling, the measured backoff and the hedge threshold. Nothing else changes: same attempts, same bounds, same verdicts. A
// zero field means the default, except Multiple.
//
// Normal is the median of one hour: it can tell that this minute is unlike the last hour, nothing more.
type Saturation struct {
	Multiple   float64       // more than 1
	Floor      time.Duration // default 20 ms
	MinSamples int           // probes without which nothing counts as saturated; default 20
}

// SaturationAbove is a process that waits more than multiple × its normal wait.
func SaturationAbove(multiple float64) Saturation { return Saturation{Multiple: multiple} }

func (s Saturation) resolve(c *checker) Saturation {
	s.Floor = orDefault(s.Floor, 20*time.Millisecond)
	s.MinSamples = orDefault(s.MinSamples, 20)
	c.above("Saturation.Multiple", s.Multiple, 1)
	c.positive("Saturation.Floor", s.Floor)
	c.atLeast("Saturation.MinSamples", s.MinSamples, 1)
	return s
}

// exceeded reports whether a reading of the probe is above what is normal for this process.
func (s Saturation) exceeded(r poolprobe.Reading) bool {
	return r.Samples >= s.MinSamples && r.Delay > s.Floor && r.Delay > scale(r.Normal, s.Multiple)
}

// queueDelay is the process-wide probe; a variable so that tests can starve a process that is not starved.
var queueDelay = poolprobe.Delay

// learning reports whether the measurements may be fed now. It starts a probe of the scheduler if one is due, and tells of
// the beginning of an episode.
func (p *policy) learning() bool {
	s := p.set.saturation
	if s == nil {
		return true
	}
	r := queueDelay()
	exceeded := s.exceeded(r)
	if p.saturated.Load() == exceeded {
		return !exceeded
	}
	if p.saturated.CompareAndSwap(!exceeded, exceeded) && exceeded {
		p.emit(Event{Kind: EventSaturationDetected, Duration: r.Delay})
	}
	return !exceeded
}
