// Package debugvars serves a process's numbers over HTTP: expvar JSON at
// /debug/vars, health at /healthz and profiles at /debug/pprof.
//
// It promises: (1) several components of one process can each have a server of
// their own with their own variables; (2) /healthz answers 200 only when the
// component's own check passed within its bound.
package debugvars

import (
	"context"
	"encoding/json"
	"errors"
	"expvar"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/nokv/nokv/internal/listen"
)

const (
	// healthTimeout bounds one health check.
	healthTimeout = 2 * time.Second
	// maxConnections are held open, or an eighth of what the process may accept.
	maxConnections = 64
)

// Source is a component that shows its numbers.
type Source struct {
	// Vars returns what stands under "nokv"; it must marshal to JSON.
	Vars func() any
	// Healthy returns nil when the component serves; the error is shown.
	Healthy func(ctx context.Context) error
}

// Handler serves /debug/vars and /healthz of a source.
func Handler(s Source) http.Handler {
	mux := http.NewServeMux()
	profiles(mux)
	mux.HandleFunc("GET /debug/vars", func(w http.ResponseWriter, _ *http.Request) {
		own, err := json.Marshal(s.Vars())
		whole, _ := json.Marshal(readProcess()) // numbers
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		fmt.Fprintf(w, "{\n\"nokv\": %s,\n\"process\": %s", own, whole)
		expvar.Do(func(kv expvar.KeyValue) { fmt.Fprintf(w, ",\n%q: %s", kv.Key, kv.Value) })
		fmt.Fprint(w, "\n}\n")
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), healthTimeout)
		defer cancel()
		if err := s.Healthy(ctx); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}

// Serve serves a source on lis until ctx ends, and closes lis.
func Serve(ctx context.Context, lis net.Listener, s Source) error {
	server := &http.Server{Handler: Handler(s), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, ConnState: markBusy}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		_ = server.Close()
	}()
	err := server.Serve(listen.Limit(lis, min(maxConnections, listen.Connections()/8)))
	if ctx.Err() != nil && errors.Is(err, http.ErrServerClosed) {
		<-stopped
		return nil
	}
	return fmt.Errorf("serve metrics on %s: %w", lis.Addr(), err)
}
