package debugvars

import (
	"errors"
	"net"
	"net/http"
	"net/http/pprof"
	"runtime/metrics"
	"time"

	"github.com/nokv/nokv/internal/listen"
	"github.com/nokv/nokv/mtls/principal"
)

// process is what the process as a whole uses.
type process struct {
	Goroutines uint64 `json:"goroutines"`
	// HeapBytes are of objects, ResidentBytes all that the runtime has of the system and
	// not given back.
	HeapBytes     uint64 `json:"heap_bytes"`
	ResidentBytes uint64 `json:"resident_bytes"`
	OpenFiles     int    `json:"open_files"`
	OpenFileLimit uint64 `json:"open_file_limit"`
}

func readProcess() process {
	samples := []metrics.Sample{
		{Name: "/sched/goroutines:goroutines"},
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/released:bytes"},
	}
	metrics.Read(samples)
	return process{
		Goroutines: samples[0].Value.Uint64(), HeapBytes: samples[1].Value.Uint64(),
		ResidentBytes: samples[2].Value.Uint64() - samples[3].Value.Uint64(),
		OpenFiles:     listen.OpenFiles(), OpenFileLimit: listen.OpenFileLimit(),
	}
}

// profiledWithin bounds the answer of a profile, which may be asked for seconds.
const profiledWithin = 2 * time.Minute

// profiles serves /debug/pprof to operators: a profile shows what is in memory, and
// costs processor time. Without certificates they are whoever is on this machine.
func (s *Source) profiles(mux *http.ServeMux) {
	for path, serve := range map[string]http.HandlerFunc{
		"/debug/pprof/": pprof.Index, "/debug/pprof/profile": pprof.Profile, "/debug/pprof/trace": pprof.Trace, "/debug/pprof/symbol": pprof.Symbol,
	} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			if !s.operates(r) {
				http.Error(w, "profiles are for operators: show a client certificate of role operator or the token of one, or, where there are none, ask on this machine", http.StatusForbidden)
				return
			}
			if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(profiledWithin)); err != nil && !errors.Is(err, http.ErrNotSupported) {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			serve(w, r)
		})
	}
}

// operates says whether an operator asks.
func (s *Source) operates(r *http.Request) bool {
	if s.TLS != nil {
		p, err := s.caller(r)
		return err == nil && p.Role == principal.Operator
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	return err == nil && net.ParseIP(host).IsLoopback()
}

// markBusy tells the listener on which connections something is asked.
func markBusy(conn net.Conn, state http.ConnState) {
	for wrapped, ok := conn.(interface{ NetConn() net.Conn }); ok; wrapped, ok = conn.(interface{ NetConn() net.Conn }) {
		conn = wrapped.NetConn()
	}
	if place, ok := conn.(interface{ SetBusy(busy bool) }); ok && (state == http.StateActive || state == http.StateIdle) {
		place.SetBusy(state == http.StateActive)
	}
}
