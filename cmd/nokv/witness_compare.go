package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/nokv/nokv/meta/root/audit"
	rootclient "github.com/nokv/nokv/meta/root/client"
	"github.com/nokv/nokv/meta/root/storage"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// comparedOutput is what peers, or folders, were found to have in common.
type comparedOutput struct {
	A string `json:"a"`
	B string `json:"b"`
	// Positions are those at which both were seen.
	Positions uint64 `json:"positions"`
	// DiffersAt is the first position at which they differ; 0: nowhere. How says it.
	DiffersAt uint64 `json:"differs_at"`
	How       string `json:"how,omitempty"`
}

// text is the comparison in a sentence.
func (c comparedOutput) text() string {
	switch {
	case c.DiffersAt > 0:
		return fmt.Sprintf("%s and %s DIFFER at entry %d: %s. At most one of them is right.", c.A, c.B, c.DiffersAt, c.How)
	case c.Positions == 0:
		return fmt.Sprintf("%s and %s have no position in common: they cannot be compared.", c.A, c.B)
	}
	return fmt.Sprintf("%s and %s agree at %d positions.", c.A, c.B, c.Positions)
}

func differing(compared []comparedOutput) bool {
	for _, c := range compared {
		if c.DiffersAt > 0 {
			return true
		}
	}
	return false
}

// folders is a flag that is given once for each folder.
type folders []string

// String implements flag.Value.
func (d *folders) String() string { return strings.Join(*d, ", ") }

// Set implements flag.Value.
func (d *folders) Set(dir string) error {
	*d = append(*d, dir)
	return nil
}

// compareFolders audits the folders of stopped peers and compares them. The proof is that of the
// one that is furthest, or of the first that is broken.
func compareFolders(dirs []string) (*proof, error) {
	results, compared, err := audit.Compare(dirs, storage.Options{})
	if err != nil {
		return fromFiles(nil, err, "workdir "+strings.Join(dirs, " or "))
	}
	most := 0
	for i, r := range results {
		worse := r.Report.Verdict() > results[most].Report.Verdict()
		if worse || r.Report.Verdict() == results[most].Report.Verdict() && results[most].Report.Token.Compare(r.Report.Token) < 0 {
			most = i
		}
	}
	p, err := fromFiles(results[most], nil, "workdir "+dirs[most])
	if err != nil {
		return nil, err
	}
	for _, c := range compared {
		p.compared = append(p.compared, comparedOutput{c.A, c.B, c.Positions, c.Index, c.What})
	}
	return p, nil
}

// comparePeers compares what root peers show: those that are at one position, and what each
// of them says of the others.
func comparePeers(peers []rootclient.PeerStatus) (out []comparedOutput) {
	name := func(s *rootv1.StatusResponse) string { return fmt.Sprintf("root peer %d", s.GetNodeId()) }
	for i, p := range peers {
		if p.Err != nil {
			continue
		}
		if why := p.Status.GetStateDiffers(); why != "" {
			out = append(out, comparedOutput{A: name(p.Status), B: "another", DiffersAt: p.Status.GetAppliedIndex(), How: why})
		}
		for _, q := range peers[:i] {
			a, b := q.Status, p.Status
			if q.Err != nil || a.GetAppliedIndex() == 0 || a.GetAppliedIndex() != b.GetAppliedIndex() || a.GetClusterId() != b.GetClusterId() {
				continue
			}
			c := comparedOutput{A: name(a), B: name(b), Positions: 1}
			if a.GetStateHash() != b.GetStateHash() {
				c.DiffersAt, c.How = a.GetAppliedIndex(), fmt.Sprintf("state %016x, and state %016x", a.GetStateHash(), b.GetStateHash())
			}
			out = append(out, c)
		}
	}
	return out
}

// compareRoot asks every root peer for its position and state.
func compareRoot(ctx context.Context, cl *rootclient.Client) []comparedOutput {
	return comparePeers(cl.Status(ctx))
}
