package docs_test

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/measuredgo/resilience"
)

func query(context.Context) error { return nil }

func Example_scope() {
	ctx := context.Background()
	// region scope
	shards, err := resilience.NewScope[int](
		resilience.MustNew(resilience.WithName("shard"), resilience.WithBreaker(resilience.BreakerConfig{})),
		resilience.ScopeConfig[int]{Max: 64},
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := shards.For(7).Run(ctx, query); err != nil {
		fmt.Println(err)
	}
	shards.For(3).Breaker().Isolate() // shard 3 alone
	policies := maps.Collect(shards.All())
	for _, key := range slices.Sorted(maps.Keys(policies)) {
		fmt.Println(policies[key].Name(), policies[key].Breaker().State())
	}
	// endregion

	// Output:
	// shard:3 isolated
	// shard:7 closed
}

func Example_scopeShared() {
	// region shared
	budget, err := resilience.NewBudget(resilience.BudgetConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	tenants, err := resilience.NewScope[string](
		resilience.MustNew(resilience.WithSharedBudget(budget)), // one budget for the dependency that all tenants use
		resilience.ScopeConfig[string]{},
	)
	// endregion
	fmt.Println(tenants.For("a").Budget() == tenants.For("b").Budget(), err)
	// Output: true <nil>
}
