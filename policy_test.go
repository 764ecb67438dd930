package resilience_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/measuredgo/resilience"
	"github.com/stretchr/testify/require"
)

func TestOrderOfOptionsHasNoEffect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := breakerOf(t, resilience.BreakerConfig{Name: "b"})
		d := resilience.NewDrain()
		opts := []resilience.Option{
			resilience.WithName("orders"), resilience.WithDeadline(20 * time.Second), resilience.WithAttemptTimeout(2 * time.Second), resilience.WithAttempts(4),
			resilience.WithAttemptCeiling(resilience.CeilingAbove(4)), resilience.WithBackoff(resilience.ConstantBackoff(time.Second)),
			resilience.WithMeasuredBackoff(resilience.MeasuredBackoff{Multiple: 2}), resilience.WithBudget(resilience.BudgetConfig{Fraction: 0.2}),
			resilience.WithSharedBreaker(b), resilience.WithLimiter(resilience.FixedLimit(7)), resilience.WithHedge(resilience.HedgeAt(0.9)),
			resilience.WithSaturation(resilience.SaturationAbove(4)), resilience.WithAdaptive(true),
			resilience.WithRules(resilience.OnErrorIs(errBug, resilience.Throttled.After(3*time.Second))), resilience.WithClassifier(resilience.RetryAll()),
			resilience.WithBeforeAttempt(func(context.Context, resilience.AttemptInfo) error { return nil }),
			resilience.WithProgressBound(false), resilience.WithCriticality(true), resilience.WithNestedRetries(true), resilience.WithDrain(d),
		}
		behaviour := func(opts []resilience.Option) string {
			p := resilience.MustNew(opts...)
			var log []string
			for _, err := range []error{errDown, errBug, nil} {
				r := p.Try(t.Context(), func(context.Context) error { return err })
				log = append(log, fmt.Sprintf("%v %d %v %+v", r.Reason, r.Total, r.Elapsed, r.Attempts))
			}
			log = append(log, resilience.MustNew(opts...).Explain())
			lines := strings.Split(strings.Join(log, "\n"), "\n")
			return strings.Join(slices.DeleteFunc(lines, func(l string) bool {
				return strings.Contains(l, "pool queue delay") // the process's own, which lives
			}), "\n")
		}
		b2 := func(opts []resilience.Option) string { b.Reset(); return behaviour(opts) }
		want := b2(opts)
		rng := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test
		for range 50 {
			rng.Shuffle(len(opts), func(i, j int) { opts[i], opts[j] = opts[j], opts[i] })
			require.Equal(t, want, b2(opts))
		}
	})
}

func TestSameOptionTwiceTheLaterReplacesTheEarlierWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := breakerOf(t, resilience.BreakerConfig{})
		budget := budgetOf(t, resilience.BudgetConfig{})
		limiter := mustLimiter(t, resilience.FixedLimit(1))
		for name, c := range map[string]struct {
			opts  []resilience.Option
			check func(p resilience.Policy) bool
		}{
			"name":            {[]resilience.Option{resilience.WithName("a"), resilience.WithName("b")}, func(p resilience.Policy) bool { return p.Name() == "b" }},
			"breaker, shared": {[]resilience.Option{resilience.WithBreaker(resilience.BreakerConfig{}), resilience.WithSharedBreaker(shared)}, func(p resilience.Policy) bool { return p.Breaker() == shared }},
			"shared, breaker": {[]resilience.Option{resilience.WithSharedBreaker(shared), resilience.WithBreaker(resilience.BreakerConfig{})}, func(p resilience.Policy) bool { return p.Breaker() != nil && p.Breaker() != shared }},
			"breaker, none":   {[]resilience.Option{resilience.WithBreaker(resilience.BreakerConfig{}), resilience.WithoutBreaker()}, func(p resilience.Policy) bool { return p.Breaker() == nil }},
			"shared, none":    {[]resilience.Option{resilience.WithSharedBreaker(shared), resilience.WithoutBreaker()}, func(p resilience.Policy) bool { return p.Breaker() == nil }},
			"none, breaker":   {[]resilience.Option{resilience.WithoutBreaker(), resilience.WithBreaker(resilience.BreakerConfig{})}, func(p resilience.Policy) bool { return p.Breaker() != nil }},
			"budget, shared":  {[]resilience.Option{resilience.WithBudget(resilience.BudgetConfig{}), resilience.WithSharedBudget(budget)}, func(p resilience.Policy) bool { return p.Budget() == budget }},
			"shared, budget":  {[]resilience.Option{resilience.WithSharedBudget(budget), resilience.WithBudget(resilience.BudgetConfig{})}, func(p resilience.Policy) bool { return p.Budget() != budget }},
			"budget, none":    {[]resilience.Option{resilience.WithBudget(resilience.BudgetConfig{}), resilience.WithoutBudget()}, func(p resilience.Policy) bool { return p.Budget() == nil }},
			"budget whole": {[]resilience.Option{resilience.WithBudget(resilience.BudgetConfig{MinPerSecond: 1}), resilience.WithBudget(resilience.BudgetConfig{Fraction: 0.2})}, func(p resilience.Policy) bool {
				return p.Budget().Stats().Capacity == 30
			}},
			"an earlier value that is wrong": {[]resilience.Option{resilience.WithAttempts(-1), resilience.WithAttempts(2)}, func(p resilience.Policy) bool { return p.Try(t.Context(), fail).Total == 2 }},
			"limiter, shared":                {[]resilience.Option{resilience.WithLimiter(resilience.FixedLimit(3)), resilience.WithSharedLimiter(limiter)}, func(p resilience.Policy) bool { return p.Limiter() == limiter }},
			"limiter, none":                  {[]resilience.Option{resilience.WithSharedLimiter(limiter), resilience.WithoutLimiter()}, func(p resilience.Policy) bool { return p.Limiter() == nil }},
			"hedge, none": {[]resilience.Option{resilience.WithHedge(resilience.HedgeAt(0.9)), resilience.WithoutHedge()}, func(p resilience.Policy) bool {
				return p.Measured().HedgeThreshold.State == resilience.NotConfigured
			}},
			"ceiling, none": {[]resilience.Option{resilience.WithAttemptCeiling(resilience.CeilingAbove(2)), resilience.WithoutAttemptCeiling()}, func(p resilience.Policy) bool {
				return p.Measured().AttemptCeiling.State == resilience.NotConfigured
			}},
			"none, ceiling": {[]resilience.Option{resilience.WithoutAttemptCeiling(), resilience.WithAttemptCeiling(resilience.CeilingAbove(2))}, func(p resilience.Policy) bool {
				return p.Measured().AttemptCeiling.State == resilience.Cold
			}},
			"measured backoff, none": {[]resilience.Option{resilience.WithMeasuredBackoff(resilience.MeasuredBackoff{}), resilience.WithoutMeasuredBackoff()}, func(p resilience.Policy) bool {
				return p.Measured().BackoffBase.State == resilience.NotConfigured
			}},
			"saturation, none": {[]resilience.Option{resilience.WithSaturation(resilience.SaturationAbove(3)), resilience.WithoutSaturation()}, func(p resilience.Policy) bool {
				return p.Measured().QueueDelay.State == resilience.NotConfigured
			}},
		} {
			require.True(t, c.check(retrying(c.opts...)), name)
		}
	})
}

// wrong are options that must be refused, with what the error has to name.
func wrong() map[string]struct {
	opt   resilience.Option
	names []string
} {
	type entry = struct {
		opt   resilience.Option
		names []string
	}
	nan, inf := math.NaN(), math.Inf(1)
	m := map[string]entry{
		"deadline 0":        {resilience.WithDeadline(0), []string{"WithDeadline", "0s"}},
		"deadline -1":       {resilience.WithDeadline(-1), []string{"WithDeadline", "-1ns"}},
		"attempt timeout 0": {resilience.WithAttemptTimeout(0), []string{"WithAttemptTimeout", "0s"}},
		"attempt timeout -": {resilience.WithAttemptTimeout(-time.Hour), []string{"WithAttemptTimeout", "-1h0m0s"}},
		"attempts 0":        {resilience.WithAttempts(0), []string{"WithAttempts", "0", "at least 1"}},
		"attempts -1":       {resilience.WithAttempts(-1), []string{"WithAttempts", "-1"}},
		"attempts least":    {resilience.WithAttempts(math.MinInt), []string{"WithAttempts"}},

		"backoff base -":      {resilience.WithBackoff(resilience.Backoff{Base: -1}), []string{"Backoff.Base", "-1ns"}},
		"backoff throttled -": {resilience.WithBackoff(resilience.Backoff{ThrottledBase: -1}), []string{"Backoff.ThrottledBase", "-1ns"}},
		"backoff max -":       {resilience.WithBackoff(resilience.Backoff{Max: -1}), []string{"Backoff.Max", "-1ns"}},
		"backoff factor <1":   {resilience.WithBackoff(resilience.Backoff{Factor: 0.5}), []string{"Backoff.Factor", "0.5"}},
		"backoff factor NaN":  {resilience.WithBackoff(resilience.Backoff{Factor: nan}), []string{"Backoff.Factor", "NaN"}},
		"backoff factor Inf":  {resilience.WithBackoff(resilience.Backoff{Factor: inf}), []string{"Backoff.Factor", "Inf"}},
		"backoff factor -":    {resilience.WithBackoff(resilience.Backoff{Factor: -2}), []string{"Backoff.Factor", "-2"}},
		"backoff jitter":      {resilience.WithBackoff(resilience.Backoff{Jitter: 77}), []string{"Backoff.Jitter"}},
		"base > max":          {resilience.WithBackoff(resilience.Backoff{Base: 10 * time.Second, Max: time.Second}), []string{"Backoff.Base", "10s", "Backoff.Max", "1s"}},
		"constant 0":          {resilience.WithBackoff(resilience.ConstantBackoff(0)), []string{"ConstantBackoff is 0s"}},
		"constant -":          {resilience.WithBackoff(resilience.ConstantBackoff(-time.Second)), []string{"Backoff.Base", "-1s"}},

		"measured backoff":       {resilience.WithMeasuredBackoff(resilience.MeasuredBackoff{Multiple: -1}), []string{"MeasuredBackoff.Multiple", "-1"}},
		"measured backoff NaN":   {resilience.WithMeasuredBackoff(resilience.MeasuredBackoff{Multiple: nan}), []string{"MeasuredBackoff.Multiple", "NaN"}},
		"measured backoff q":     {resilience.WithMeasuredBackoff(resilience.MeasuredBackoff{Quantile: 1}), []string{"MeasuredBackoff.Quantile"}},
		"measured backoff w":     {resilience.WithMeasuredBackoff(resilience.MeasuredBackoff{Window: -1}), []string{"MeasuredBackoff.Window"}},
		"measured backoff n":     {resilience.WithMeasuredBackoff(resilience.MeasuredBackoff{MinSamples: -1}), []string{"MeasuredBackoff.MinSamples"}},
		"measured backoff s":     {resilience.WithMeasuredBackoff(resilience.MeasuredBackoff{Spread: 0.5}), []string{"MeasuredBackoff.Spread", "0.5"}},
		"measured backoff s Inf": {resilience.WithMeasuredBackoff(resilience.MeasuredBackoff{Spread: inf}), []string{"MeasuredBackoff.Spread"}},

		"ceiling 0":        {resilience.WithAttemptCeiling(resilience.AttemptCeiling{}), []string{"AttemptCeiling.Multiple", "0"}},
		"ceiling 1":        {resilience.WithAttemptCeiling(resilience.CeilingAbove(1)), []string{"AttemptCeiling.Multiple", "1"}},
		"ceiling NaN":      {resilience.WithAttemptCeiling(resilience.CeilingAbove(nan)), []string{"AttemptCeiling.Multiple", "NaN"}},
		"ceiling Inf":      {resilience.WithAttemptCeiling(resilience.CeilingAbove(inf)), []string{"AttemptCeiling.Multiple"}},
		"ceiling q":        {resilience.WithAttemptCeiling(resilience.AttemptCeiling{Multiple: 3, Quantile: 0.995}), []string{"AttemptCeiling.Quantile", "0.995"}},
		"ceiling q NaN":    {resilience.WithAttemptCeiling(resilience.AttemptCeiling{Multiple: 3, Quantile: nan}), []string{"AttemptCeiling.Quantile"}},
		"ceiling q low":    {resilience.WithAttemptCeiling(resilience.AttemptCeiling{Multiple: 3, Quantile: 0.4}), []string{"AttemptCeiling.Quantile"}},
		"ceiling window":   {resilience.WithAttemptCeiling(resilience.AttemptCeiling{Multiple: 3, Window: -1}), []string{"AttemptCeiling.Window"}},
		"ceiling samples":  {resilience.WithAttemptCeiling(resilience.AttemptCeiling{Multiple: 3, MinSamples: -1}), []string{"AttemptCeiling.MinSamples"}},
		"ceiling floor":    {resilience.WithAttemptCeiling(resilience.AttemptCeiling{Multiple: 3, Floor: -1}), []string{"AttemptCeiling.Floor"}},
		"ceiling floor >=": {resilience.WithAttemptCeiling(resilience.AttemptCeiling{Multiple: 3, Floor: 10 * time.Second}), []string{"AttemptCeiling.Floor", "10s", "WithAttemptTimeout"}},

		"hedge 0":           {resilience.WithHedge(resilience.Hedge{}), []string{"Hedge.Quantile", "0"}},
		"hedge 1":           {resilience.WithHedge(resilience.HedgeAt(1)), []string{"Hedge.Quantile", "1"}},
		"hedge percent":     {resilience.WithHedge(resilience.HedgeAt(95)), []string{"Hedge.Quantile", "95"}},
		"hedge NaN":         {resilience.WithHedge(resilience.HedgeAt(nan)), []string{"Hedge.Quantile"}},
		"hedge concurrent":  {resilience.WithHedge(resilience.Hedge{Quantile: 0.9, MaxConcurrent: -1}), []string{"Hedge.MaxConcurrent"}},
		"hedge samples":     {resilience.WithHedge(resilience.Hedge{Quantile: 0.9, MinSamples: -1}), []string{"Hedge.MinSamples"}},
		"hedge delay":       {resilience.WithHedge(resilience.Hedge{Quantile: 0.9, MinDelay: -1}), []string{"Hedge.MinDelay"}},
		"hedge window":      {resilience.WithHedge(resilience.Hedge{Quantile: 0.9, Window: -1}), []string{"Hedge.Window"}},
		"hedge suppress":    {resilience.WithHedge(resilience.Hedge{Quantile: 0.9, SuppressAt: 2}), []string{"Hedge.SuppressAt", "2"}},
		"hedge suppress N":  {resilience.WithHedge(resilience.Hedge{Quantile: 0.9, SuppressAt: nan}), []string{"Hedge.SuppressAt"}},
		"hedge crowd":       {resilience.WithHedge(resilience.Hedge{Quantile: 0.9, MaxConcurrent: 101}), []string{"Hedge.MaxConcurrent is 101, want 2 to 100"}},
		"win rate nothing":  {resilience.WithHedge(resilience.Hedge{Quantile: 0.9, WinRate: resilience.WinRate{Window: time.Second}}), []string{"WinRate.Minimum is 0"}},
		"win rate":          {resilience.WithHedge(resilience.Hedge{Quantile: 0.9, WinRate: resilience.WinRate{Minimum: 2}}), []string{"WinRate.Minimum", "2"}},
		"win rate NaN":      {resilience.WithHedge(resilience.Hedge{Quantile: 0.9, WinRate: resilience.WinRate{Minimum: nan}}), []string{"WinRate.Minimum"}},
		"win rate window":   {resilience.WithHedge(resilience.Hedge{Quantile: 0.9, WinRate: resilience.WinRate{Minimum: 0.1, Window: -1}}), []string{"WinRate.Window"}},
		"win rate samples":  {resilience.WithHedge(resilience.Hedge{Quantile: 0.9, WinRate: resilience.WinRate{Minimum: 0.1, MinSamples: -1}}), []string{"WinRate.MinSamples"}},
		"win rate allows":   {resilience.WithHedge(resilience.Hedge{Quantile: 0.9, WinRate: resilience.WinRate{Minimum: 0.1, MinAllowance: 2}}), []string{"WinRate.MinAllowance"}},
		"win rate allows N": {resilience.WithHedge(resilience.Hedge{Quantile: 0.9, WinRate: resilience.WinRate{Minimum: 0.1, MinAllowance: nan}}), []string{"WinRate.MinAllowance"}},

		"saturation 0":       {resilience.WithSaturation(resilience.Saturation{}), []string{"Saturation.Multiple"}},
		"saturation NaN":     {resilience.WithSaturation(resilience.SaturationAbove(nan)), []string{"Saturation.Multiple"}},
		"saturation Inf":     {resilience.WithSaturation(resilience.SaturationAbove(inf)), []string{"Saturation.Multiple"}},
		"saturation floor":   {resilience.WithSaturation(resilience.Saturation{Multiple: 2, Floor: -1}), []string{"Saturation.Floor"}},
		"saturation samples": {resilience.WithSaturation(resilience.Saturation{Multiple: 2, MinSamples: -1}), []string{"Saturation.MinSamples"}},

		"budget fraction": {resilience.WithBudget(resilience.BudgetConfig{Fraction: 50}), []string{"BudgetConfig.Fraction", "50"}},
		"budget second":   {resilience.WithBudget(resilience.BudgetConfig{MinPerSecond: -3}), []string{"BudgetConfig.MinPerSecond", "-3"}},

		"breaker ratio":      {resilience.WithBreaker(resilience.BreakerConfig{FailureRatio: 50}), []string{"FailureRatio", "50"}},
		"breaker ratio >1":   {resilience.WithBreaker(resilience.BreakerConfig{FailureRatio: 1.0001}), []string{"FailureRatio", "1.0001"}},
		"breaker ratio NaN":  {resilience.WithBreaker(resilience.BreakerConfig{FailureRatio: nan}), []string{"FailureRatio"}},
		"breaker window":     {resilience.WithBreaker(resilience.BreakerConfig{Window: -1}), []string{"Window"}},
		"breaker open":       {resilience.WithBreaker(resilience.BreakerConfig{OpenFor: -1}), []string{"OpenFor"}},
		"breaker max open":   {resilience.WithBreaker(resilience.BreakerConfig{OpenFor: time.Minute, MaxOpenFor: time.Second}), []string{"MaxOpenFor", "OpenFor"}},
		"breaker probes":     {resilience.WithBreaker(resilience.BreakerConfig{Probes: -1}), []string{"Probes"}},
		"breaker absorbs":    {resilience.WithBreaker(resilience.BreakerConfig{Failures: resilience.RelativeFailures{Multiple: 10, Window: time.Minute}}), []string{"Failures.Window"}},
		"limiter min > max":  {resilience.WithLimiter(resilience.LimiterConfig{Min: 10, Max: 5}), []string{"Min", "Max", "10", "5"}},
		"limiter initial":    {resilience.WithLimiter(resilience.LimiterConfig{Initial: 20, Max: 10}), []string{"Initial", "Max", "20", "10"}},
		"limiter fixed 0":    {resilience.WithLimiter(resilience.FixedLimit(0)), []string{"Fixed", "0"}},
		"limiter fixed both": {resilience.WithLimiter(resilience.LimiterConfig{Fixed: 3, Max: 10}), []string{"Fixed", "Max"}},
		"limiter queue":      {resilience.WithLimiter(resilience.LimiterConfig{Queue: -1}), []string{"Queue", "-1"}},
		"limiter multiple":   {resilience.WithLimiter(resilience.LimiterConfig{Multiple: nan}), []string{"Multiple"}},
		"limiter decrease":   {resilience.WithLimiter(resilience.LimiterConfig{Decrease: 1.5}), []string{"Decrease", "1.5"}},

		"nil shared budget":  {resilience.WithSharedBudget(nil), []string{"WithSharedBudget", "nil"}},
		"nil shared breaker": {resilience.WithSharedBreaker(nil), []string{"WithSharedBreaker", "nil"}},
		"nil shared limiter": {resilience.WithSharedLimiter(nil), []string{"WithSharedLimiter", "nil"}},
		"nil classifier":     {resilience.WithClassifier(nil), []string{"WithClassifier", "nil"}},
		"nil before":         {resilience.WithBeforeAttempt(nil), []string{"WithBeforeAttempt", "nil"}},
		"nil admit":          {resilience.WithAdmit(nil), []string{"WithAdmit", "nil"}},
		"nil listener":       {resilience.WithListener(nil), []string{"WithListener", "nil"}},
		"nil drain":          {resilience.WithDrain(nil), []string{"WithDrain", "nil"}},
		"nil clock":          {resilience.WithClock(nil), []string{"WithClock", "nil"}},
		"typed nil clock":    {resilience.WithClock((*clock.Mock)(nil)), []string{"WithClock", "nil"}},
		"nil discard":        {resilience.OnDiscard[int](nil), []string{"OnDiscard", "nil"}},
		"nil match":          {resilience.WithRules(resilience.OnError("mine", resilience.Transient, nil)), []string{"mine", "nil"}},
		"nil target":         {resilience.WithRules(resilience.OnErrorIs(nil, resilience.Transient)), []string{"nil"}},
		"nil as":             {resilience.WithRules(resilience.OnErrorAs[*svcError]("mine", nil)), []string{"mine", "nil"}},
		"nil result":         {resilience.WithRules(resilience.OnResult[int]("mine", nil)), []string{"mine", "nil"}},
		"nil in classifier":  {resilience.WithClassifier(resilience.NewClassifier(resilience.OnResult[int]("mine", nil))), []string{"mine", "nil"}},
		"nil option":         {nil, []string{"option"}},
	}
	return m
}

func TestEveryWrongValueIsRefusedWithItsName(t *testing.T) {
	for name, c := range wrong() {
		t.Run(name, func(t *testing.T) {
			p, err := resilience.New(c.opt)
			require.Error(t, err)
			require.True(t, p == resilience.Policy{}, "no half-made policy")
			for _, n := range c.names {
				require.ErrorContains(t, err, n)
			}
			require.ErrorContains(t, err, "resilience: New: ")
			_, err = resilience.MustNew().With(c.opt)
			require.Error(t, err)
			require.ErrorContains(t, err, "resilience: With: ")
			_, err = resilience.Policy{}.With(c.opt)
			if !strings.HasPrefix(name, "ceiling floor >=") { // the zero policy has no attempt timeout that the floor could exceed
				require.Error(t, err)
			}
			require.Panics(t, func() { resilience.MustNew(c.opt) })
			require.Panics(t, func() { resilience.MustNew().MustWith(c.opt) })
		})
	}
}

func TestAllProblemsAreReportedAtOnce(t *testing.T) {
	_, err := resilience.New(
		resilience.WithDeadline(-time.Second), resilience.WithAttempts(0), resilience.WithBackoff(resilience.Backoff{Base: -1, Factor: math.NaN(), Jitter: 9}),
		resilience.WithHedge(resilience.Hedge{Quantile: 95, MinSamples: -1}), resilience.WithBudget(resilience.BudgetConfig{Fraction: 7}),
		resilience.WithBreaker(resilience.BreakerConfig{FailureRatio: 50, Probes: -1}), resilience.WithLimiter(resilience.LimiterConfig{Min: 10, Max: 5}),
		nil, resilience.WithListener(nil), resilience.WithAttemptCeiling(resilience.CeilingAbove(0.5)), resilience.WithSaturation(resilience.SaturationAbove(0)),
		resilience.WithRules(resilience.OnErrorIs(nil, resilience.OK)),
	)
	joined, ok := err.(interface{ Unwrap() []error })
	require.True(t, ok, "errors.Join")
	require.GreaterOrEqual(t, len(joined.Unwrap()), 16)
	for _, n := range []string{
		"WithDeadline", "WithAttempts", "Backoff.Base", "Backoff.Factor", "Backoff.Jitter", "Hedge.Quantile", "Hedge.MinSamples", "BudgetConfig.Fraction",
		"FailureRatio", "Probes", "Min", "option 8", "WithListener", "AttemptCeiling.Multiple", "Saturation.Multiple", "rule 1",
	} {
		require.ErrorContains(t, err, n)
	}
	for _, e := range joined.Unwrap() {
		require.Regexp(t, `^resilience: New: .+ is .+, want .+`, e.Error())
	}
}

func TestCombinationsWithAdaptiveOff(t *testing.T) {
	off := resilience.WithAdaptive(false)
	for name, o := range map[string]resilience.Option{
		"WithAttemptCeiling":  resilience.WithAttemptCeiling(resilience.CeilingAbove(3)),
		"WithMeasuredBackoff": resilience.WithMeasuredBackoff(resilience.MeasuredBackoff{}),
		"WithHedge":           resilience.WithHedge(resilience.HedgeAt(0.9)),
	} {
		_, err := resilience.New(off, o)
		require.ErrorContains(t, err, "WithAdaptive")
		require.ErrorContains(t, err, name)
		_, err = resilience.MustNew(o).With(off)
		require.ErrorContains(t, err, name)
		_, err = resilience.New(off)
		require.NoError(t, err)
	}
	_, err := resilience.New(off, resilience.WithSaturation(resilience.SaturationAbove(3)))
	require.ErrorContains(t, err, "WithSaturation")
	p, err := resilience.New(off, resilience.WithBreaker(resilience.BreakerConfig{}), resilience.WithLimiter(resilience.AdaptiveLimit(10)))
	require.NoError(t, err, "the switch stops at the guards")
	require.Equal(t, resilience.NotConfigured, p.Measured().AttemptCeiling.State)
	require.Equal(t, resilience.Cold, p.Measured().NormalLatency.State)
	p = p.MustWith(resilience.WithAdaptive(true))
	require.Equal(t, resilience.Cold, p.Measured().AttemptCeiling.State, "the default ceiling is back")
}

func TestSaturationWithoutAnythingToProtectIsRefused(t *testing.T) {
	s := resilience.WithSaturation(resilience.SaturationAbove(3))
	_, err := resilience.New(s)
	require.NoError(t, err)
	_, err = resilience.New(s, resilience.WithoutAttemptCeiling())
	require.ErrorContains(t, err, "WithSaturation")
	_, err = resilience.New(s, resilience.WithoutAttemptCeiling(), resilience.WithHedge(resilience.HedgeAt(0.9)))
	require.NoError(t, err)
	_, err = resilience.New(s, resilience.WithoutAttemptCeiling(), resilience.WithMeasuredBackoff(resilience.MeasuredBackoff{}))
	require.NoError(t, err)
}

func TestLibraryNeverRefusesItsOwnValues(t *testing.T) {
	for name, opts := range map[string][]resilience.Option{
		"short attempt timeout":           {resilience.WithAttemptTimeout(1)},
		"short attempt timeout, ceiling":  {resilience.WithAttemptTimeout(1), resilience.WithAttemptCeiling(resilience.CeilingAbove(3))},
		"unbounded":                       {resilience.WithAttemptTimeout(resilience.Unbounded), resilience.WithDeadline(resilience.Unbounded)},
		"attempt timeout above deadline":  {resilience.WithAttemptTimeout(time.Hour), resilience.WithDeadline(time.Second)},
		"huge backoff base":               {resilience.WithBackoff(resilience.Backoff{Base: time.Hour})},
		"huge constant backoff":           {waits(time.Hour)},
		"tiny backoff max":                {resilience.WithBackoff(resilience.Backoff{Max: 1})},
		"tiny breaker window":             {resilience.WithBreaker(resilience.BreakerConfig{Window: time.Second})},
		"long breaker window":             {resilience.WithBreaker(resilience.BreakerConfig{Window: 30 * time.Minute})},
		"short MaxOpenFor":                {resilience.WithBreaker(resilience.BreakerConfig{MaxOpenFor: time.Second})},
		"long OpenFor":                    {resilience.WithBreaker(resilience.BreakerConfig{OpenFor: time.Hour})},
		"small limiter":                   {resilience.WithLimiter(resilience.AdaptiveLimit(1))},
		"large minimum":                   {resilience.WithLimiter(resilience.LimiterConfig{Min: 100})},
		"many attempts":                   {resilience.WithAttempts(math.MaxInt)},
		"hedge":                           {resilience.WithHedge(resilience.HedgeAt(0.5))},
		"win rate minimum only":           {resilience.WithHedge(resilience.Hedge{Quantile: 0.9, WinRate: resilience.WinRate{Minimum: 0.1}})},
		"no options":                      {},
		"an option that holds no rules":   {resilience.WithRules()},
		"an empty name":                   {resilience.WithName("")},
		"saturation with default ceiling": {resilience.WithSaturation(resilience.SaturationAbove(2))},
	} {
		_, err := resilience.New(opts...)
		require.NoError(t, err, name)
	}
}

func TestDerivedPolicyKeepsTheRestAndSharesNothingPrivate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := retrying(resilience.WithName("p"), resilience.WithBreaker(resilience.BreakerConfig{ConsecutiveFailures: 1}), resilience.WithLimiter(resilience.FixedLimit(1)),
			resilience.WithBudget(resilience.BudgetConfig{}), resilience.WithAttempts(2))
		require.Error(t, p.Run(t.Context(), fail))
		require.Equal(t, resilience.StateOpen, p.Breaker().State())
		d := p.MustWith(resilience.WithDeadline(time.Minute))
		require.Equal(t, "p", d.Name())
		require.Equal(t, resilience.StateClosed, d.Breaker().State())
		require.NotSame(t, p.Limiter(), d.Limiter())
		require.Equal(t, 30.0, d.Budget().Stats().Tokens)
		require.False(t, p == d)
		copied := p
		require.True(t, p == copied)
		require.Same(t, p.Breaker(), copied.Breaker())

		d = p.MustWith(resilience.WithAttempts(3), resilience.WithoutBreaker())
		require.Equal(t, 3, d.Try(t.Context(), fail).Total)
		require.Equal(t, resilience.StateOpen, p.Breaker().State(), "the original is untouched")
	})
}

func TestDerivedFromTheZeroPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := resilience.Policy{}.With(resilience.WithName("z"))
		require.NoError(t, err)
		require.Equal(t, "z", p.Name())
		require.NoError(t, p.Run(context.Background(), func(ctx context.Context) error {
			_, ok := ctx.Deadline()
			require.False(t, ok)
			return nil
		}))
		require.Equal(t, 1, p.Try(t.Context(), scripted(context.DeadlineExceeded).fn).Total)
		require.Nil(t, p.Budget())
	})
}

func TestAttemptCountsAtTheirEdges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for n := 1; n <= 3; n++ {
			require.Equal(t, n, retrying(resilience.WithAttempts(n)).Try(t.Context(), fail).Total)
		}
		p := retrying(resilience.WithAttempts(math.MaxInt), waits(time.Second), resilience.WithDeadline(10*time.Second))
		require.Equal(t, 10, p.Try(t.Context(), fail).Total)
	})
}

func TestCriticalityTravels(t *testing.T) {
	ctx := t.Context()
	require.Equal(t, resilience.Critical, resilience.CriticalityFrom(ctx))
	require.Equal(t, resilience.Critical, resilience.CriticalityFrom(nil)) //nolint:staticcheck // that is the point
	for _, c := range []resilience.Criticality{resilience.Sheddable, resilience.SheddablePlus, resilience.Critical, resilience.CriticalPlus} {
		require.NoError(t, retrying().Run(resilience.ContextWithCriticality(ctx, c), func(ctx context.Context) error {
			require.Equal(t, c, resilience.CriticalityFrom(ctx), "through the attempt")
			return nil
		}))
		require.NotEqual(t, "unknown", c.String())
	}
	require.Equal(t, resilience.Critical, resilience.CriticalityFrom(resilience.ContextWithCriticality(ctx, 77)))
	require.Zero(t, resilience.Critical, "the zero value")
	require.Less(t, resilience.Sheddable, resilience.SheddablePlus)
	require.Less(t, resilience.Critical, resilience.CriticalPlus)
}

func TestPolicyWithAProblemCannotBeUsedByAccident(t *testing.T) {
	defer func() {
		err, ok := recover().(error)
		require.True(t, ok)
		require.ErrorContains(t, err, "WithAttempts")
		require.True(t, errors.As(err, new(interface{ Unwrap() []error })))
	}()
	resilience.MustNew(resilience.WithAttempts(0))
}

func TestAFloorThatNobodyWroteRefusesNothing(t *testing.T) {
	p := resilience.MustNew(resilience.WithAttemptCeiling(resilience.CeilingAbove(3)))
	_, err := p.With(resilience.WithAttemptTimeout(40 * time.Millisecond))
	require.NoError(t, err, "as New accepts it")
	p = resilience.MustNew(resilience.WithAttemptCeiling(resilience.AttemptCeiling{Multiple: 3, Floor: 50 * time.Millisecond}))
	_, err = p.With(resilience.WithAttemptTimeout(40 * time.Millisecond))
	require.ErrorContains(t, err, "AttemptCeiling.Floor is 50ms")
}

func TestZeroObjectsAreRefused(t *testing.T) {
	for name, o := range map[string]resilience.Option{
		"WithSharedBudget":  resilience.WithSharedBudget(&resilience.Budget{}),
		"WithSharedBreaker": resilience.WithSharedBreaker(&resilience.Breaker{}),
		"WithSharedLimiter": resilience.WithSharedLimiter(&resilience.Limiter{}),
		"WithDrain":         resilience.WithDrain(&resilience.Drain{}),
	} {
		_, err := resilience.New(o)
		require.ErrorContains(t, err, name+" is nil or zero, want a ")
	}
}

func TestAPrivateBudgetMayHaveAClock(t *testing.T) {
	c := clock.NewMock()
	p := resilience.MustNew(resilience.WithClassifier(resilience.RetryAll()), resilience.WithBackoff(resilience.NoBackoff()),
		resilience.WithBudget(resilience.BudgetConfig{MinPerSecond: 0.1, Clock: c}))
	require.ErrorIs(t, p.Run(t.Context(), fail), resilience.ErrBudgetExhausted)
	require.InDelta(t, 0, p.Budget().Stats().Tokens, 1e-9)
	c.Add(time.Hour)
	require.InDelta(t, 1, p.Budget().Stats().Tokens, 1e-9)
}
