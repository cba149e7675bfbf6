package chaos

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/nokv/nokv/internal/testing/proctest"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// heal waits until everything is served, ends the load and waits until the
// processes are at rest. How soon Finality has to come is judged in virtual time, in
// coordinator/simulation.
func (r *run) heal() {
	r.t.Helper()
	r.c.net.Heal()
	r.alive()
	r.progress(lowLoad, "after healing")
	r.c.WaitHealthy(patience)
	r.load.pause()
	if late := time.Duration(r.load.slowest.Load()); late > lateCall {
		r.t.Errorf("a call took %s longer than its deadline", late)
	}
	proctest.Eventually(r.t, patience, r.rests)
	proctest.Eventually(r.t, patience, r.copiesRest)
	r.load.finish()
	for m := range members {
		r.e.violations = append(r.e.violations, r.counted(m)...)
	}
}

// lateCall is how much longer than its deadline a call may take on a busy machine.
const lateCall = patience / 4

// rests says whether all root peers have applied the whole log as it is known, and
// the last handover is closed in it.
func (r *run) rests() error {
	r.e.mu.Lock()
	last := uint64(len(r.e.log))
	r.e.mu.Unlock()
	var peers []peerEnd
	r.e.asked = r.load.now()
	for i, s := range r.c.status() {
		if s.GetAppliedIndex() != last || s.GetCommitIndex() != last {
			return fmt.Errorf("%s has applied %d of %d, the log is known up to %d", rootPlace(i), s.GetAppliedIndex(), s.GetCommitIndex(), last)
		}
		if h := s.GetHandover(); h.GetStage() != rootv1.HandoverStage_HANDOVER_STAGE_CLOSED {
			return fmt.Errorf("Finality: the handover of era %d is at %v", h.GetEra(), h.GetStage())
		}
		peers = append(peers, peerEnd{rootPlace(i), s.GetAppliedIndex(), s.GetStateHash(), s.GetHandover()})
	}
	r.e.peers = peers
	return nil
}

// counted are broken promises that a process has noticed itself.
func (r *run) counted(m int) (found []error) {
	var vars struct {
		HashMismatches      uint64            `json:"hash_mismatches"`
		GuaranteeViolations map[string]uint64 `json:"guarantee_violations"`
	}
	if err := r.c.vars(m, &vars); err != nil {
		return []error{err}
	}
	if m >= roots && len(vars.GuaranteeViolations) == 0 {
		found = append(found, fmt.Errorf("%s does not count violations", place(m)))
	}
	for name, n := range vars.GuaranteeViolations {
		if n > 0 {
			found = append(found, fmt.Errorf("%s counted %d violations of %s", place(m), n, name))
		}
	}
	if n := vars.HashMismatches; n > 0 {
		found = append(found, fmt.Errorf("%s counted %d state hashes that differ", place(m), n))
	}
	return found
}

// vars reads what a process shows of itself into a struct with the fields to read.
func (c *cluster) vars(m int, into any) error {
	client := http.Client{Timeout: patience}
	resp, err := client.Get("http://" + c.MetricsAddrs[m] + "/debug/vars")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	all := struct {
		NoKV any `json:"nokv"`
	}{into}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<22)).Decode(&all); err != nil {
		return fmt.Errorf("%s: /debug/vars: %w", place(m), err)
	}
	return nil
}
