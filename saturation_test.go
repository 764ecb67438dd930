package resilience_test

import (
	"math"
	"testing"
	"time"

	"github.com/measuredgo/resilience"
	"github.com/stretchr/testify/require"
)

func TestSaturationNeedsSomethingToProtect(t *testing.T) {
	on := resilience.WithSaturation(resilience.SaturationAbove(4))
	_, err := resilience.New(on, resilience.WithoutAttemptCeiling())
	require.ErrorContains(t, err, "WithSaturation")
	_, err = resilience.New(on, resilience.WithAttemptTimeout(50*time.Millisecond))
	require.ErrorContains(t, err, "WithSaturation", "the default ceiling has stepped aside")
	_, err = resilience.New(on, resilience.WithAdaptive(false))
	require.ErrorContains(t, err, "WithAdaptive")
	require.ErrorContains(t, err, "WithSaturation")
	for _, protects := range []resilience.Option{
		resilience.WithAttemptCeiling(resilience.CeilingAbove(3)),
		resilience.WithMeasuredBackoff(resilience.MeasuredBackoff{}),
		resilience.WithHedge(resilience.HedgeAt(0.95)),
	} {
		_, err = resilience.New(on, resilience.WithoutAttemptCeiling(), protects)
		require.NoError(t, err)
	}
}

func TestSaturationSettingsThatAreRefused(t *testing.T) {
	for field, s := range map[string]resilience.Saturation{
		"Saturation.Multiple is 0":          {},
		"Saturation.Multiple is 1":          {Multiple: 1},
		"Saturation.Multiple is NaN":        {Multiple: math.NaN()},
		"Saturation.Multiple is +Inf":       {Multiple: math.Inf(1)},
		"Saturation.Floor is -1ns":          {Multiple: 2, Floor: -1},
		"Saturation.MinSamples is -1, want": {Multiple: 2, MinSamples: -1},
	} {
		_, err := resilience.New(resilience.WithSaturation(s))
		require.ErrorContains(t, err, "WithSaturation: "+field)
	}
}
