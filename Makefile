# What there is to do, for people and for CI. Needs Go and make; lint fetches its tool through the Go module proxy.

GO            ?= go
BIN           := $(CURDIR)/bin
LINT_VERSION  := v2.15.0
LINT          := $(BIN)/golangci-lint-$(LINT_VERSION)
FUZZTIME      ?= 10s
BENCHTIME     ?= 200ms
MODULES       := . bench/peers

.PHONY: help fmt lint vet test race allocs fuzz bench bench-peers examples ci

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

fmt: $(LINT) ## format the code
	$(LINT) fmt

lint: $(LINT) ## vet, linters and formatting, in every module
	@for m in $(MODULES); do echo "lint $$m"; (cd $$m && $(LINT) run --config $(CURDIR)/.golangci.yml ./...) || exit 1; done

$(LINT):
	mkdir -p $(BIN)
	GOBIN=$(BIN) GOFLAGS= $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)
	mv $(BIN)/golangci-lint $(LINT)

vet: ## go vet in every module
	@for m in $(MODULES); do echo "vet $$m"; (cd $$m && $(GO) vet ./...) || exit 1; done

test: ## all tests of the library
	$(GO) test ./...

race: ## all tests three times, shuffled, under the race detector
	$(GO) test -race -shuffle=on -count=3 -timeout=30m ./...

allocs: ## the allocation ceilings, which the race detector would falsify
	$(GO) test -run 'Alloc|Memory' -count=1 ./...

fuzz: ## every fuzz target for FUZZTIME, a time or a count such as 1000x
	@$(GO) list ./... | while read -r p; do \
		$(GO) test -list '^Fuzz' $$p | grep '^Fuzz' | while read -r f; do \
			echo "fuzz $$p $$f"; $(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x $$p </dev/null || exit 1; \
		done || exit 1; \
	done

bench: ## benchmarks, with the hand-written floor beside each
	$(GO) test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) . ./resiliencehttp ./internal/...

bench-peers: ## this library beside its peers, in rounds
	cd bench/peers && $(GO) run . speed && $(GO) run . behaviour

examples: ## run the short form of every example
	@for e in examples/*/main.go; do echo "== $$e"; $(GO) run ./$$(dirname $$e) -short || exit 1; done

ci: vet lint test race allocs ## what CI runs
