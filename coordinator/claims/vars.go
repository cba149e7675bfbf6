package claims

// Vars are counts since the process started, and what waits now.
type Vars struct {
	// Made counts regions that claims made, Found claims of keys that had one, Refused those
	// that got none, Deserted those that nobody waited for when their turn came, Overloaded
	// those for which there was no room.
	Made       uint64 `json:"made"`
	Found      uint64 `json:"found"`
	Refused    uint64 `json:"refused"`
	Deserted   uint64 `json:"deserted"`
	Overloaded uint64 `json:"overloaded"`
	// Calls to the root; Again counts claims that were looked at a second time behind one.
	Calls uint64 `json:"calls"`
	Again uint64 `json:"again"`
	// Asked counts claims of which a hook said what it had to say, Unasked those that went by
	// the fallback because it was of no use.
	Asked   uint64 `json:"asked"`
	Unasked uint64 `json:"unasked"`
	// Open claims are not answered.
	Open int `json:"open"`
}

// Vars returns the Desk's numbers.
func (d *Desk) Vars() Vars {
	d.mu.Lock()
	open := len(d.open)
	d.mu.Unlock()
	c := &d.counts
	return Vars{
		Made: c.made.Load(), Found: c.found.Load(), Refused: c.refused.Load(), Deserted: c.deserted.Load(), Overloaded: c.overloaded.Load(),
		Calls: c.entries.Load(), Again: c.again.Load(),
		Asked: c.asked.Load(), Unasked: c.unasked.Load(), Open: open,
	}
}
