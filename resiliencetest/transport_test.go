package resiliencetest_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/measuredgo/resilience/resiliencetest"
	"github.com/stretchr/testify/require"
)

func request(t testing.TB, ctx context.Context, method, body string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, "http://db.test/x", strings.NewReader(body))
	require.NoError(t, err)
	return req
}

func TestRoundTripperFollowsItsScript(t *testing.T) {
	var server resiliencetest.RoundTripper
	server.Respond(503, "busy").Header("Retry-After", "2").Fail(errDown).Respond(200, "done")
	client := &http.Client{Transport: &server}

	resp, err := client.Do(request(t, t.Context(), "POST", "order"))
	require.NoError(t, err)
	require.Equal(t, 503, resp.StatusCode)
	require.Equal(t, "503 Service Unavailable", resp.Status)
	require.Equal(t, "2", resp.Header.Get("Retry-After"))
	require.EqualValues(t, 4, resp.ContentLength)
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, "busy", string(text))
	require.Equal(t, []string{"request 1: POST http://db.test/x -> 503"}, server.Unclosed())
	require.NoError(t, resp.Body.Close())
	require.NoError(t, resp.Body.Close())
	require.Empty(t, server.Unclosed())
	_, err = resp.Body.Read(make([]byte, 1))
	require.ErrorIs(t, err, http.ErrBodyReadAfterClose)

	_, err = client.Get("http://db.test/x")
	require.ErrorIs(t, err, errDown)
	for range 2 {
		resp, err = client.Get("http://db.test/x")
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
	}

	seen := server.Requests()
	require.Len(t, seen, 4)
	require.Equal(t, "order", string(seen[0].Body))
	require.Equal(t, "GET", seen[1].Method)
	seen[0].Header.Set("X", "changed")
	seen[0].Body[0] = 'X'
	require.Equal(t, "order", string(server.Requests()[0].Body), "what is returned is a copy")
	require.Empty(t, server.Requests()[0].Header.Get("X"))
}

func TestZeroRoundTripperAnswers200(t *testing.T) {
	var server resiliencetest.RoundTripper
	resp, err := server.RoundTrip(request(t, t.Context(), "", ""))
	require.NoError(t, err)
	require.Equal(t, 200, resp.StatusCode)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, "GET", server.Requests()[0].Method)
}

func TestRoundTripperKnowsTheAttempt(t *testing.T) {
	var server resiliencetest.RoundTripper
	server.Fail(errDown).Respond(200, "")
	err := retrying().Run(t.Context(), func(ctx context.Context) error {
		resp, err := server.RoundTrip(request(t, ctx, "GET", ""))
		if err == nil {
			resp.Body.Close()
		}
		return err
	})
	require.NoError(t, err)
	require.Equal(t, 1, server.Requests()[0].Attempt.Number)
	require.Equal(t, 2, server.Requests()[1].Attempt.Number)
}

func TestRoundTripperBodiesThatBreakAndStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var server resiliencetest.RoundTripper
		server.Respond(200, "half").Break(io.ErrUnexpectedEOF).Respond(200, "half").Stall()
		resp, err := server.RoundTrip(request(t, t.Context(), "GET", ""))
		require.NoError(t, err)
		require.EqualValues(t, -1, resp.ContentLength)
		text, err := io.ReadAll(resp.Body)
		require.Equal(t, "half", string(text))
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		resp.Body.Close()

		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errDown)
		defer cancel()
		resp, err = server.RoundTrip(request(t, ctx, "GET", ""))
		require.NoError(t, err)
		begin := time.Now()
		text, err = io.ReadAll(resp.Body)
		require.Equal(t, "half", string(text))
		require.ErrorIs(t, err, errDown, "the cause of the context")
		require.Equal(t, time.Second, time.Since(begin))
		resp.Body.Close()

		resp, err = server.RoundTrip(request(t, t.Context(), "GET", ""))
		require.NoError(t, err)
		time.AfterFunc(time.Second, func() { resp.Body.Close() })
		_, err = io.ReadAll(resp.Body)
		require.ErrorIs(t, err, http.ErrBodyReadAfterClose, "closing ends a read")
		require.Empty(t, server.Unclosed())
	})
}

func TestTheLaterOfBreakAndStallWins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var server resiliencetest.RoundTripper
		server.Respond(200, "half").Stall().Break(errDown).Respond(200, "half").Break(errDown).Stall()
		for _, want := range []error{errDown, context.DeadlineExceeded} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			resp, err := server.RoundTrip(request(t, ctx, "GET", ""))
			require.NoError(t, err)
			_, err = io.ReadAll(resp.Body)
			require.ErrorIs(t, err, want)
			resp.Body.Close()
			cancel()
		}
	})
}

func TestRoundTripperHangsAndDelaysUntilTheContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var server resiliencetest.RoundTripper
		server.Hang().Respond(200, "").After(time.Hour)
		for range 2 {
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errDown)
			_, err := server.RoundTrip(request(t, ctx, "GET", ""))
			require.ErrorIs(t, err, errDown)
			cancel()
			_, err = server.RoundTrip(request(t, ctx, "GET", ""))
			require.ErrorIs(t, err, errDown, "a context that is done already")
		}
	})
}

func TestRoundTripperAnswersHeadWithoutABody(t *testing.T) {
	var server resiliencetest.RoundTripper
	server.Respond(200, "text")
	resp, err := server.RoundTrip(request(t, t.Context(), "HEAD", ""))
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Empty(t, text)
	require.EqualValues(t, 4, resp.ContentLength)
}

func TestRoundTripperRunsStepsOfYourOwn(t *testing.T) {
	var server resiliencetest.RoundTripper
	server.Do(func(r *http.Request) (*http.Response, error) {
		sent, err := io.ReadAll(r.Body)
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("echo " + string(sent)))}, err
	})
	resp, err := server.RoundTrip(request(t, t.Context(), "PUT", "x"))
	require.NoError(t, err)
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, "echo x", string(text))
	require.Len(t, server.Unclosed(), 1)
	require.NotNil(t, resp.Request)
	resp.Body.Close()
}

// A transport gives an answer or an error: nobody would close the body of an answer beside an error.
func TestRoundTripperClosesAnAnswerThatComesWithAnError(t *testing.T) {
	body := &closing{Reader: http.NoBody}
	answers := []*http.Response{{StatusCode: http.StatusOK, Body: body}, {StatusCode: http.StatusOK}}
	var server resiliencetest.RoundTripper
	for _, resp := range answers {
		server.Do(func(*http.Request) (*http.Response, error) { return resp, errDown })
	}
	for range answers {
		resp, err := server.RoundTrip(request(t, t.Context(), "GET", ""))
		require.ErrorIs(t, err, errDown)
		require.Nil(t, resp)
	}
	require.True(t, body.closed)
	require.Empty(t, server.Unclosed())
}

func TestRoundTripperReadsAndClosesTheBodyOfTheRequest(t *testing.T) {
	var server resiliencetest.RoundTripper
	body := &closing{Reader: iotest.ErrReader(errDown)}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://db.test/", body)
	require.NoError(t, err)
	_, err = server.RoundTrip(req)
	require.ErrorIs(t, err, errDown)
	require.True(t, body.closed)
	require.Empty(t, server.Requests(), "a request whose body failed was never sent")
}

type closing struct {
	io.Reader
	closed bool
}

func (c *closing) Close() error { c.closed = true; return nil }

func TestRoundTripperExactly(t *testing.T) {
	failed := &spy{}
	var server resiliencetest.RoundTripper
	made := nextLine()
	server.Fail(errDown).Exactly(failed)
	for range 2 {
		_, err := server.RoundTrip(request(t, t.Context(), "GET", ""))
		require.Error(t, err)
	}
	require.Equal(t, []string{"resiliencetest: the script of " + made + " has 1 step, this is call 2"}, failed.failures)
}

func TestRoundTripperIsSafeForConcurrentUse(t *testing.T) {
	var server resiliencetest.RoundTripper
	server.Respond(200, "x").Header("K", "v")
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			resp, err := server.RoundTrip(request(t, t.Context(), "POST", "body"))
			if err == nil {
				resp.Header.Set("K", "changed")
				resp.Body.Close()
			}
			_, _ = server.Requests(), server.Unclosed()
		})
	}
	wg.Wait()
	require.Len(t, server.Requests(), 20)
	require.Empty(t, server.Unclosed())
	resp, err := server.RoundTrip(request(t, t.Context(), "GET", ""))
	require.NoError(t, err)
	require.Equal(t, "v", resp.Header.Get("K"), "each answer has a header of its own")
	resp.Body.Close()
}

func TestRoundTripperRefusesMisuse(t *testing.T) {
	server := func() *resiliencetest.RoundTripper { return &resiliencetest.RoundTripper{} }
	refuses(t, "status of RoundTripper.Respond is 0", func() { server().Respond(0, "") })
	refuses(t, "RoundTripper.Header comes after the step", func() { server().Header("a", "b") })
	refuses(t, "RoundTripper.Stall comes after RoundTripper.Respond", func() { server().Fail(errors.New("x")).Stall() })
	refuses(t, "RoundTripper.Break is nil", func() { server().Respond(200, "").Break(nil) })
	refuses(t, "RoundTripper.Fail without an error", func() { server().Fail() })
	refuses(t, "RoundTripper.Fail is nil", func() { server().Fail(nil) })
	refuses(t, "RoundTripper.Do is nil", func() { server().Do(nil) })
	refuses(t, "want 0 or more", func() { server().Hang().After(-1) })
	refuses(t, "RoundTripper.Hang under a context that cannot end", func() { _, _ = server().Hang().RoundTrip(request(t, context.Background(), "GET", "")) })
}
