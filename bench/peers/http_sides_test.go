package main

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestEveryTransportRetries(t *testing.T) {
	for _, side := range httpSides() {
		t.Run(side.who, func(t *testing.T) {
			var turn atomic.Int64
			s := newServer(func(w http.ResponseWriter, _ *http.Request) {
				if turn.Add(1) < 3 {
					w.WriteHeader(http.StatusServiceUnavailable)
				}
			})
			defer s.Close()
			c := &http.Client{Transport: side.transport(&http.Transport{DisableKeepAlives: true})}
			resp, err := c.Get(s.URL)
			require.NoError(t, err)
			defer resp.Body.Close()
			require.Equal(t, http.StatusOK, resp.StatusCode)
			require.Equal(t, int64(3), turn.Load())
		})
	}
}

func TestEveryTransportEndsWithItsCaller(t *testing.T) {
	for _, side := range httpSides() {
		t.Run(side.who, func(t *testing.T) {
			hold := make(chan struct{})
			s := newServer(func(http.ResponseWriter, *http.Request) { <-hold })
			defer s.Close()
			defer close(hold)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL, nil)
			require.NoError(t, err)
			c := &http.Client{Transport: side.transport(&http.Transport{DisableKeepAlives: true})}
			began := time.Now()
			resp, err := c.Do(req) //nolint:bodyclose // there is none
			require.Error(t, err)
			require.Nil(t, resp)
			require.Less(t, time.Since(began), 5*time.Second)
		})
	}
}
