// Package resiliencehttp puts a resilience.Policy around HTTP: a client transport, and what a server needs to honour the
// deadline that its caller set.
//
// # Client
//
//	client, err := resiliencehttp.NewClient(policy) // policy from NewPolicy
//
// The transport retries what can be repeated without harm: requests with a safe or idempotent method, with an
// Idempotency-Key, or marked with Repeatable. Anything else runs under the same policy as one attempt: bounded, guarded by
// breaker, limiter and budget, never hedged. Each host has a policy of its own, derived from the one given.
//
// What callers can rely on:
//
//   - The caller's request is never changed. Each attempt, and each leg of a hedge, has its own clone, headers and body
//     reader. A request body that is not going to be repeated is streamed and never read into memory.
//   - The response that the caller gets is open, and its body readable until it is closed, read to its end, or the
//     deadline of the call is reached. The attempt timeout ends with the headers; from then on it bounds one read (ErrStalled).
//   - Every other response is drained, at most 64 KiB and 50 ms, and closed, so that its connection is used again.
//   - A failure that is an answer comes back as that answer: after the last attempt a 503 is a response and a nil error.
//   - The connection pool belongs to the base transport and is not touched. Nothing is logged. A call that succeeds at
//     once starts no goroutine, unless it is hedged or reads a body without GetBody ahead.
//
// The base transport has to end a request when its context ends, as that of net/http does.
//
// # Server
//
// Inbound turns the deadline header of a request into the deadline of its context, which every policy underneath obeys.
// WriteProblem answers with what has become of a call: status, Retry-After and a problem document of RFC 9457.
package resiliencehttp
