package limitsim

import (
	"math"
	"math/rand/v2"
	"time"
)

// Base is the mean service time of the three models beneath.
const Base = 50 * time.Millisecond

// The models that limits are usually tried on.
var (
	Exact       = Model{Name: "exact", Service: Constant(Base), Exact: true}
	Exponential = Model{Name: "exponential", Service: ExponentialService(Base)}
	LogNormal   = Model{Name: "sigma 1", Service: LogNormalService(Base, 1)}
)

// Service draws the time that one call takes at the dependency, in nanoseconds.
type Service func(r *rand.Rand) float64

// Constant takes the same time always.
func Constant(d time.Duration) Service {
	return func(*rand.Rand) float64 { return float64(d) }
}

// ExponentialService has the given mean.
func ExponentialService(mean time.Duration) Service {
	return func(r *rand.Rand) float64 { return float64(mean) * r.ExpFloat64() }
}

// LogNormalService has the given mean; sigma is that of the logarithm.
func LogNormalService(mean time.Duration, sigma float64) Service {
	middle := float64(mean) * math.Exp(-sigma*sigma/2)
	return func(r *rand.Rand) float64 { return middle * math.Exp(sigma*r.NormFloat64()) }
}

// Pareto has the given mean and a tail of the given exponent above 1.
func Pareto(mean time.Duration, exponent float64) Service {
	least := float64(mean) * (exponent - 1) / exponent
	return func(r *rand.Rand) float64 { return least * math.Pow(1-r.Float64(), -1/exponent) }
}

// Cached answers the given share of the calls in 1 ms and the rest as service does.
func Cached(hits float64, service Service) Service {
	return func(r *rand.Rand) float64 {
		if r.Float64() < hits {
			return float64(time.Millisecond)
		}
		return service(r)
	}
}
