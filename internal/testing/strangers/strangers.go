// Package strangers is what a principal without any grant gets of a closed keyspace, call by
// call. It is written by hand, and not from the tables of internal/access: those say who may
// make a call, this says what the call may give away. The documents show it, and the tests of
// the servers make each call and look.
package strangers

import (
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Row is what one call lets a stranger do with a keyspace that is closed to it: see of it, own
// of it, change of it, and be given. Empty: nothing.
type Row struct{ Sees, Owns, Changes, Given string }

// Coordinator and Store are the calls of the two services that touch keyspaces, by their last
// word. A call that names or answers with anything of a keyspace has a row.
var (
	Coordinator = map[protoreflect.Name]Row{
		// Reads answer as if the keyspace, or the region, were not there.
		"GetRegionByKey":   {},
		"GetRegionsByKeys": {},
		"RouteStream":      {},
		"GetRegion":        {},
		"ScanRegions":      {},
		"WatchRegions":     {},
		"ListTransitions":  {},
		"GetKeyspace":      {},
		"ListKeyspaces":    {},
		"ResolvePin":       {},
		"RegionNotes":      {},
		"Plan":             {},
		"ListMembers":      {Sees: "`?` in the place of its name, and of each member of the cluster its address, its labels, its load and how many regions it owns"},
		"Status":           {Sees: "how many keyspaces and regions there are, and how many of them wait for something"},
		"Witness":          {Sees: "that a guarantee is broken, and not where"},

		// Changes are refused in the words for what is not there.
		"PublishRootEvent":  {},
		"PublishRootEvents": {},
		"PublishStream":     {},
		"AssessRootEvent":   {},
		"RemoveRegion":      {},
		"CreateKeyspace":    {},
		"UpdateKeyspace":    {},
		"DeleteKeyspace":    {},
		"AssignRegions":     {},
		"ClaimRegions":      {},
		"PinKeys":           {},

		// A member's own calls.
		"RegisterMember":  {Sees: "whether a name that it registers for is that of a closed keyspace: it is refused"},
		"DrainMember":     {},
		"StoreHeartbeat":  {},
		"RegionHeartbeat": {Sees: "a region that it owns from before, as it is rooted"},
		"MemberStream":    {Sees: "the regions that it owns from before, with the keyspace's name and terms", Owns: "these, until they are moved to others"},

		// Calls that neither members nor clients have.
		"FailMember":    {},
		"RemoveMember":  {},
		"ReleaseRegion": {},
		"ApplyPlan":     {},
		"GrantAccess":   {},
		"RevokeAccess":  {},
		"ListGrants":    {},
		"CheckAccess":   {Sees: "a proxy: whether some grant names the keyspace, which is what its callers are refused by"},
	}
	Store = map[protoreflect.Name]Row{
		"Get":            {Sees: everything},
		"Scan":           {Sees: everything},
		"Status":         {Sees: "the regions that the store follows"},
		"Put":            {Changes: everything},
		"Delete":         {Changes: everything},
		"Split":          {},
		"Merge":          {},
		"TransferLeader": {},
		"Import":         {},
	}
)

const everything = "what the store holds: a store asks no grants"

// Bears says whether a call names a keyspace, or anything of one, in what it is asked or what it
// answers: such a call has a row.
func Bears(m protoreflect.MethodDescriptor) bool {
	seen := map[protoreflect.FullName]bool{}
	return reaches(m.Input(), seen) || reaches(m.Output(), seen)
}

func reaches(m protoreflect.MessageDescriptor, seen map[protoreflect.FullName]bool) bool {
	if seen[m.FullName()] || m.Name() == "ErrorDetail" { // every refusal may carry a region
		return false
	}
	seen[m.FullName()] = true
	fields := m.Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.IsMap() {
			continue
		}
		switch name := string(f.Name()); {
		case f.Message() != nil && reaches(f.Message(), seen):
			return true
		case name == "keyspace", name == "keyspaces", name == "pin", name == "plan_id", name == "name" && strings.Contains(string(m.Name()), "Keyspace"),
			strings.HasSuffix(name, "keyspace_id"), strings.HasSuffix(name, "region_id"), strings.HasSuffix(name, "region"), strings.HasSuffix(name, "regions"),
			strings.HasSuffix(name, "transition_id"), strings.HasSuffix(name, "key"), name == "keys", name == "transitions":
			return true
		}
	}
	return false
}
