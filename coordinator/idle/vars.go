package idle

// Vars are counts since the process started.
type Vars struct {
	// Scans counts looks through all reports, Asked owners that were asked to release a
	// region, Kept those that did not, Silent those of these that did not answer, Unreached
	// those that have no stream here.
	Scans     uint64 `json:"scans"`
	Asked     uint64 `json:"asked"`
	Kept      uint64 `json:"kept"`
	Silent    uint64 `json:"silent"`
	Unreached uint64 `json:"unreached"`
	// Removed counts regions, and Refused what the root did not remove.
	Removed uint64 `json:"removed"`
	Refused uint64 `json:"refused"`
}

// Vars returns the Releaser's numbers.
func (r *Releaser) Vars() Vars {
	c := &r.counts
	return Vars{
		Scans: c.scans.Load(), Asked: c.asked.Load(), Kept: c.kept.Load(), Silent: c.silent.Load(), Unreached: c.unreached.Load(),
		Removed: c.removed.Load(), Refused: c.refused.Load(),
	}
}
