package docs_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/measuredgo/resilience"
	"github.com/stretchr/testify/require"
)

// region shutdown
const grace = 5 * time.Second

// stop ends the service: nothing is retried any more, and the server waits for the requests that it serves.
func stop(drain *resilience.Drain, server *http.Server) error {
	drain.Begin(grace) // before Shutdown: from here on retries would only hold it up
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	return server.Shutdown(ctx)
}

// endregion

func Example_shutdown() {
	busy := errors.New("stock: busy")
	// region drain
	drain := resilience.NewDrain() // one for the process
	stock := resilience.MustNew(resilience.WithName("stock"), resilience.WithDrain(drain),
		resilience.WithRules(resilience.OnErrorIs(busy, resilience.Transient)))
	// endregion
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	fmt.Println(stop(drain, server.Config))
	err := stock.Run(context.Background(), func(context.Context) error { return busy })
	fmt.Println(errors.Is(err, resilience.ErrDraining), errors.Is(err, busy))
	fmt.Println(err)

	// Output:
	// <nil>
	// true true
	// resilience: stock: draining after 1 attempt: stock: busy
}

// What docs/shutdown.md says about a wait that is under way, and about calls that start after Begin.
func TestDrainEndsWaitsAndBoundsWhatStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		drain := resilience.NewDrain()
		p := resilience.MustNew(resilience.WithDrain(drain), resilience.WithClassifier(resilience.RetryAll()),
			resilience.WithBackoff(resilience.ConstantBackoff(10*time.Second)))
		time.AfterFunc(2*time.Second, func() { drain.Begin(3 * time.Second) })
		begin := time.Now()
		err := p.Run(t.Context(), func(context.Context) error { return errors.New("down") })
		require.ErrorIs(t, err, resilience.ErrDraining)
		require.Equal(t, 2*time.Second, time.Since(begin))
		err = p.Run(t.Context(), func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		})
		require.ErrorIs(t, err, resilience.ErrDraining)
		require.ErrorIs(t, err, resilience.ErrDeadlineExceeded)
		require.Equal(t, 5*time.Second, time.Since(begin))
		err = p.Run(t.Context(), func(context.Context) error { return nil })
		require.ErrorIs(t, err, resilience.ErrDeadlineExceeded, "nothing is left of the grace")
	})
}
