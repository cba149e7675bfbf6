package state

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/protobuf/proto"
)

// CheckCommand checks what can be judged without a State: that everything in
// the command is known to this version, its form, and the limits. It returns
// nil for a well-formed command. Servers ask it before they propose: what is
// unknown here would stop the replicas.
func CheckCommand(c *rootv1.Command) *rootv1.ErrorDetail {
	return checkAtDoor(c, false)
}

// CheckSmall is CheckCommand for a command of at most MaxCommandBytes, which is not
// measured.
func CheckSmall(c *rootv1.Command) *rootv1.ErrorDetail {
	return checkAtDoor(c, true)
}

// checkAtDoor judges a command before it is in the log: more strictly than what is there
// already, which every version has to judge alike.
func checkAtDoor(c *rootv1.Command, small bool) *rootv1.ErrorDetail {
	if err := known(c); err != nil {
		return invalid("%v", err)
	}
	for _, e := range c.GetEvents() {
		for _, k := range []*rootv1.KeyspaceSettings{e.GetKeyspaceCreated().GetSettings(), e.GetKeyspaceUpdated().GetSettings()} {
			if d := checkOdd(k); d != nil {
				return d // it names the setting
			}
		}
	}
	if d := checkCommand(c, small); d != nil {
		return d
	}
	for _, e := range c.GetEvents() {
		if err := checkNamed(e); err != nil {
			return invalid("%v", err)
		}
		joins := e.GetMemberJoined().GetMember()
		if err := rooted.CheckProbeAddress(joins.GetProbeAddress(), joins.GetAddress()); err != nil {
			return invalid("%v", err)
		}
		if n := joins.GetCapacity(); n > MaxCapacity {
			return invalid("the member's capacity is %d, at most %d are allowed: it is a part relative to those of other members", n, MaxCapacity)
		}
		for _, k := range []*rootv1.KeyspaceSettings{e.GetKeyspaceCreated().GetSettings(), e.GetKeyspaceUpdated().GetSettings()} {
			if d := first(checkHook(k), checkScaling(k), checkConfirmed(k)); d != nil {
				return d
			}
		}
	}
	return nil
}

// checkNamed refuses ids that come in with an event and cannot be told from others, and such texts beside
// them in lists.
func checkNamed(e *rootv1.Event) error {
	switch k := e.GetKind().(type) {
	case *rootv1.Event_MemberJoined:
		m := k.MemberJoined.GetMember()
		err := cmp.Or(rooted.CheckID("member id", m.GetId()), rooted.CheckShown("address", m.GetAddress()), rooted.CheckShown("kind", m.GetKind()))
		for _, name := range slices.Sorted(maps.Keys(m.GetLabels())) {
			err = cmp.Or(err, rooted.CheckShown("label name", name), rooted.CheckShown("label", m.GetLabels()[name]))
		}
		return err
	case *rootv1.Event_CoordinatorJoined:
		return cmp.Or(rooted.CheckID("coordinator id", k.CoordinatorJoined.GetId()), rooted.CheckShown("address", k.CoordinatorJoined.GetAddress()))
	case *rootv1.Event_TenureClaimed:
		return cmp.Or(rooted.CheckID("holder id", k.TenureClaimed.GetHolderId()), rooted.CheckShown("holder address", k.TenureClaimed.GetHolderAddress()))
	}
	return nil
}

// checkConfirmed refuses a ttl that runs out between two frames of a member, or behind one
// that is late, and a death between them.
func checkConfirmed(s *rootv1.KeyspaceSettings) *rootv1.ErrorDetail {
	interval := LivenessOf(s).GetIntervalMillis()
	if dead := s.GetLiveness().GetDeadAfterMillis(); dead > 0 && dead < interval {
		return invalid("liveness-dead-after is %d ms, and liveness-interval %d ms: make liveness-dead-after more than %d ms", dead, interval, 2*interval)
	}
	if ttl := fenceTTL(s); ttl > 0 && ttl < 2*interval {
		return invalid("ownership-ttl is %d ms, and liveness-interval %d ms: members would stop in between; make ownership-ttl %d ms or more, or liveness-interval %d ms or less",
			ttl, interval, 2*interval, ttl/2)
	}
	return nil
}

func invalid(format string, args ...any) *rootv1.ErrorDetail {
	return refuse(rootv1.Reason_REASON_INVALID_REQUEST, format, args...)
}

// checkCommand is CheckCommand for what is known. A small command is not
// measured.
func checkCommand(c *rootv1.Command, small bool) *rootv1.ErrorDetail {
	n := len(c.GetEvents())
	switch {
	case n == 0:
		return invalid("the command has no events")
	case n > MaxEventsPerCommand:
		d := invalid("the command has %d events, at most %d fit", n, MaxEventsPerCommand)
		d.Limit = MaxEventsPerCommand
		return d
	case len(c.GetRequireKeyspaces()) > MaxRequiredKeyspaces:
		d := invalid("the command requires versions of %d keyspaces, at most %d fit", len(c.GetRequireKeyspaces()), MaxRequiredKeyspaces)
		d.Limit = MaxRequiredKeyspaces
		return d
	case !small && proto.Size(c) > MaxCommandBytes:
		d := invalid("the command has %d bytes, at most %d fit", proto.Size(c), MaxCommandBytes)
		d.Limit = MaxCommandBytes
		return d
	}
	if d := first(checkIdentity(c.GetIdentity()), checkText("actor", c.GetActor(), MaxActorBytes), checkText("via", c.GetVia(), MaxActorBytes), checkText("reason why", c.GetWhy(), MaxWhyBytes)); d != nil {
		return d
	}
	for i, e := range c.GetEvents() {
		if d := checkEvent(e); d != nil {
			if n > 1 {
				d.Message = fmt.Sprintf("event %d: %s", i, d.GetMessage())
			}
			return d
		}
	}
	return nil
}

func checkEvent(e *rootv1.Event) *rootv1.ErrorDetail {
	switch k := e.GetKind().(type) {
	case *rootv1.Event_ClusterBootstrapped:
		return checkCluster(k.ClusterBootstrapped.GetCluster())
	case *rootv1.Event_FenceExtended:
		return checkFence(k.FenceExtended)
	case *rootv1.Event_TenureClaimed:
		return checkClaim(k.TenureClaimed)
	case *rootv1.Event_TenureRetired:
		return first(checkID("holder id", k.TenureRetired.GetHolderId()), checkBytes("retire secret", k.TenureRetired.GetRetireSecret(), RetireSecretBytes))
	case *rootv1.Event_HandoverAdvanced:
		if k.HandoverAdvanced.GetStage() == rootv1.HandoverStage_HANDOVER_STAGE_UNSPECIFIED {
			return invalid("the handover's stage is missing")
		}
		return checkText("holder id", k.HandoverAdvanced.GetHolderId(), MaxIDBytes)
	case *rootv1.Event_CoordinatorJoined:
		return first(checkID("coordinator id", k.CoordinatorJoined.GetId()),
			checkText("address", k.CoordinatorJoined.GetAddress(), MaxAddressBytes))
	case *rootv1.Event_CoordinatorLeft:
		return checkID("coordinator id", k.CoordinatorLeft.GetId())
	case *rootv1.Event_MemberJoined:
		return checkMember(k.MemberJoined.GetMember())
	case *rootv1.Event_MemberStateChanged:
		return checkVerdict(k.MemberStateChanged)
	case *rootv1.Event_KeyspaceCreated:
		return first(checkName(k.KeyspaceCreated.GetName()), checkSettings(k.KeyspaceCreated.GetSettings()))
	case *rootv1.Event_KeyspaceUpdated:
		return first(checkWhich(k.KeyspaceUpdated.GetKeyspaceId(), k.KeyspaceUpdated.GetName()), checkSettings(k.KeyspaceUpdated.GetSettings()))
	case *rootv1.Event_KeyspaceDeleted:
		return checkWhich(k.KeyspaceDeleted.GetKeyspaceId(), k.KeyspaceDeleted.GetName())
	case *rootv1.Event_PinKeyRotated:
		return checkKey(forPins, k.PinKeyRotated)
	case *rootv1.Event_TokenKeyRotated:
		return checkKey(forTokens, k.TokenKeyRotated)
	case *rootv1.Event_TokenRevoked:
		return checkNumber("id of the key", uint64(k.TokenRevoked.GetKeyId()))
	case *rootv1.Event_RootPeerAdded:
		return checkRootPeer(k.RootPeerAdded)
	case *rootv1.Event_FeatureLevelRaised:
		return checkRaise(k.FeatureLevelRaised)
	case *rootv1.Event_TenureEnded:
		return checkNumber("era", k.TenureEnded.GetEra())
	case *rootv1.Event_ClusterSettingsChanged:
		return checkClusterSettings(k.ClusterSettingsChanged)
	case *rootv1.Event_AccessGranted:
		return first(checkGrantNames(k.AccessGranted.GetGrant().GetPrincipal(), k.AccessGranted.GetGrant().GetKeyspace()), checkVerbs(k.AccessGranted.GetGrant().GetPrincipal(), k.AccessGranted.GetGrant().GetVerbs(), true))
	case *rootv1.Event_AccessRevoked:
		return first(checkGrantNames(k.AccessRevoked.GetPrincipal(), k.AccessRevoked.GetKeyspace()), checkVerbs(k.AccessRevoked.GetPrincipal(), k.AccessRevoked.GetVerbs(), false))
	case *rootv1.Event_RootPeerPromoted, *rootv1.Event_RootPeersSettled, *rootv1.Event_RootPeerDropped:
	default:
		return checkRegionEvent(e)
	}
	return nil
}

func checkRegionEvent(e *rootv1.Event) *rootv1.ErrorDetail {
	switch k := e.GetKind().(type) {
	case *rootv1.Event_RegionBootstrapped:
		return checkRegion(k.RegionBootstrapped.GetRegion())
	case *rootv1.Event_RegionPublished:
		return checkRegion(k.RegionPublished.GetRegion())
	case *rootv1.Event_RegionTombstoned:
		return checkNumber("region id", k.RegionTombstoned.GetRegionId())
	case *rootv1.Event_RegionsAssigned:
		return checkAssignments(k.RegionsAssigned.GetAssignments())
	case *rootv1.Event_PeerChangePlanned:
		return checkPeerChange(k.PeerChangePlanned)
	case *rootv1.Event_SplitPlanned:
		return first(checkPlan(k.SplitPlanned.GetRegionId(), k.SplitPlanned.GetExpectedEpoch()),
			checkRegionID(k.SplitPlanned.GetRightRegionId()),
			checkBytes("split key", k.SplitPlanned.GetSplitKey(), MaxKeyBytes))
	case *rootv1.Event_MergePlanned:
		return first(checkPlan(k.MergePlanned.GetLeftRegionId(), k.MergePlanned.GetLeftExpectedEpoch()),
			checkPlan(k.MergePlanned.GetRightRegionId(), k.MergePlanned.GetRightExpectedEpoch()))
	case *rootv1.Event_TransitionCompleted:
		return checkCompleted(k.TransitionCompleted)
	case *rootv1.Event_MovePlanned:
		return checkMove(k.MovePlanned)
	case *rootv1.Event_MoveReady:
		return first(checkID("transition id", k.MoveReady.GetTransitionId()), checkNumber("incarnation", k.MoveReady.GetIncarnation()))
	case *rootv1.Event_TransitionCancelled:
		return first(checkID("transition id", k.TransitionCancelled.GetTransitionId()),
			checkText("reason", k.TransitionCancelled.GetReason(), MaxTextBytes))
	default:
		return invalid("the event has no kind")
	}
}

func checkCluster(c *rootv1.Cluster) *rootv1.ErrorDetail {
	n := len(c.GetPeers())
	if c.GetClusterId() == 0 {
		return invalid("the cluster id is missing")
	}
	if n != 1 && n != 3 && n != MaxRootPeers {
		return invalid("a cluster has 1, 3 or 5 root peers, not %d", n)
	}
	for i, p := range c.GetPeers() {
		if d := first(checkNumber("node id", p.GetNodeId()), checkText("transport address", p.GetTransportAddress(), MaxAddressBytes)); d != nil {
			return d
		}
		if slices.ContainsFunc(c.GetPeers()[:i], func(o *rootv1.RootPeer) bool { return o.GetNodeId() == p.GetNodeId() }) {
			return invalid("node id %d is named twice", p.GetNodeId())
		}
	}
	return nil
}

func checkFence(e *rootv1.FenceExtended) *rootv1.ErrorDetail {
	if m := e.GetMandate(); m != rootv1.Mandate_MANDATE_ALLOC_ID && m != rootv1.Mandate_MANDATE_TSO {
		return invalid("there is no fence for %s", m)
	}
	return first(checkNumber("era", e.GetEra()), checkNumber("size of the window", e.GetSize()))
}

func checkClaim(e *rootv1.TenureClaimed) *rootv1.ErrorDetail {
	bad := func(format string, args ...any) *rootv1.ErrorDetail {
		return refuse(rootv1.Reason_REASON_INVALID_TENURE, format, args...)
	}
	if d := first(checkID("holder id", e.GetHolderId()), checkText("holder address", e.GetHolderAddress(), MaxAddressBytes)); d != nil {
		return bad("%s", d.GetMessage())
	}
	switch {
	case e.GetHolderIncarnation() == 0:
		return bad("the holder's incarnation is missing")
	case len(e.GetMandates()) == 0:
		return bad("a Tenure needs a mandate")
	case e.GetTtlMillis() > MaxTenureTTLMillis:
		return bad("the ttl is %d ms, at most %d ms are allowed", e.GetTtlMillis(), MaxTenureTTLMillis)
	case e.GetLeastTtlMillis() > e.GetTtlMillis():
		return bad("the ttl is %d ms, below its least of %d ms", e.GetTtlMillis(), e.GetLeastTtlMillis())
	case len(e.GetRetireDigest()) != 0 && len(e.GetRetireDigest()) != sha256.Size:
		return bad("the digest of the retire secret has %d bytes, not %d", len(e.GetRetireDigest()), sha256.Size)
	}
	for i, m := range e.GetMandates() {
		if m == rootv1.Mandate_MANDATE_UNSPECIFIED || slices.Contains(e.GetMandates()[:i], m) {
			return bad("mandate %s is no mandate or is named twice", m)
		}
	}
	return nil
}

func checkMember(m *rootv1.Member) *rootv1.ErrorDetail {
	if d := first(checkID("member id", m.GetId()), checkAddress("address", m.GetAddress()), checkAddress("probe address", m.GetProbeAddress()),
		checkText("kind", m.GetKind(), MaxTextBytes), checkLabels(m.GetLabels()), checkMemberKeyspaces(m.GetKeyspaces())); d != nil {
		return d
	}
	if m.GetStartNonce() == 0 {
		return invalid("the start nonce is missing: choose a random one at each process start")
	}
	return nil
}

func checkMemberKeyspaces(names []string) *rootv1.ErrorDetail {
	if n := len(names); n > MaxMemberKeyspaces {
		return invalid("the member names %d keyspaces, at most %d fit: none means all", n, MaxMemberKeyspaces)
	}
	for i, name := range names {
		if d := checkName(name); d != nil {
			return d
		}
		if slices.Contains(names[:i], name) {
			return invalid("the member names keyspace %q twice", name)
		}
	}
	return nil
}

// checkAddress judges where a member is reached; empty: nowhere.
func checkAddress(what, a string) *rootv1.ErrorDetail {
	if d := checkText(what, a, MaxAddressBytes); d != nil || a == "" {
		return d
	}
	colon := strings.LastIndexByte(a, ':')
	host, port := a[:max(colon, 0)], a[colon+1:]
	bare := strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || bare == "" || strings.ContainsAny(bare, "[] /") || strings.Contains(host, ":") && bare == host {
		return invalid("the %s %q is not host:port, such as 10.0.0.7:7000 or [fd00::7]:7000", what, a)
	}
	return nil
}

func checkVerdict(e *rootv1.MemberStateChanged) *rootv1.ErrorDetail {
	if d := first(checkID("member id", e.GetMemberId()), checkText("reason", e.GetReason(), MaxTextBytes)); d != nil {
		return d
	}
	if e.GetState() == rootv1.MemberState_MEMBER_STATE_UNSPECIFIED {
		return invalid("the member's state is missing")
	}
	if n := len(e.GetSignals()); n > MaxSignals {
		return invalid("%d signals, at most %d fit", n, MaxSignals)
	}
	for _, s := range e.GetSignals() {
		if d := checkText("signal", s, MaxTextBytes); d != nil {
			return d
		}
	}
	return nil
}

func checkRegion(r *rootv1.Region) *rootv1.ErrorDetail {
	if d := checkNumber("keyspace id", uint64(r.GetKeyspaceId())); d != nil {
		return d
	}
	if d := checkBytes("start key", r.GetStartKey(), MaxKeyBytes); d != nil {
		return d
	}
	if d := checkBytes("end key", r.GetEndKey(), MaxKeyBytes+1); d != nil {
		return d
	}
	if d := checkBytes("frontier", r.GetFrontier(), MaxFrontierBytes); d != nil {
		return d
	}
	if d := checkRegionID(r.GetId()); d != nil {
		return d
	}
	if e := EpochFromProto(r.GetEpoch()); max(e.Version, e.ConfVersion) > MaxEpoch {
		return invalid("epoch %s is above %d", e, uint64(MaxEpoch))
	}
	return checkOwners(r.GetOwners())
}

// checkRegionID keeps region ids inside the space of ids.
func checkRegionID(id uint64) *rootv1.ErrorDetail {
	if id > MaxID {
		return invalid("region id %d is above %d", id, uint64(MaxID))
	}
	return nil
}

func checkOwners(owners []*rootv1.Owner) *rootv1.ErrorDetail {
	if n := len(owners); n > MaxOwners {
		d := refuse(rootv1.Reason_REASON_TOO_MANY_REPLICAS, "%d owners, at most %d fit", n, MaxOwners)
		d.Limit = MaxOwners
		return d
	}
	for i, o := range owners {
		if d := checkID("member id", o.GetMemberId()); d != nil {
			return d
		}
		for _, other := range owners[:i] {
			if other.GetMemberId() == o.GetMemberId() {
				return invalid("member %q owns the region twice", o.GetMemberId())
			}
		}
	}
	return nil
}

func checkAssignments(all []*rootv1.Assignment) *rootv1.ErrorDetail {
	if n := len(all); n == 0 || n > MaxEventsPerCommand {
		return invalid("%d assignments, 1 to %d are allowed", n, MaxEventsPerCommand)
	}
	for _, a := range all {
		if d := first(checkNumber("region id", a.GetRegionId()), checkOwners(a.GetOwners()),
			checkBytes("frontier", a.GetFrontier(), MaxFrontierBytes)); d != nil {
			return d
		}
		if a.GetAcknowledged() && (len(a.GetOwners()) != 1 || a.GetOwners()[0].GetIncarnation() == 0 || a.GetExpectedEpoch() == nil || !a.GetSetFrontier()) {
			return invalid("a frontier of region %d is acknowledged by one owner with its incarnation, at an epoch", a.GetRegionId())
		}
	}
	return nil
}

func checkPeerChange(e *rootv1.PeerChangePlanned) *rootv1.ErrorDetail {
	if e.GetKind() != kindAdd && e.GetKind() != kindRemove {
		return invalid("%s is no peer change", e.GetKind())
	}
	return first(checkPlan(e.GetRegionId(), e.GetExpectedEpoch()), checkID("member id", e.GetOwner().GetMemberId()))
}

// checkPlan wants the epoch a plan is made at: it is part of the plan's id.
func checkPlan(id uint64, expected *rootv1.RegionEpoch) *rootv1.ErrorDetail {
	if expected == nil {
		return invalid("the expected epoch of region %d is missing", id)
	}
	return checkNumber("region id", id)
}

func checkRaise(e *rootv1.FeatureLevelRaised) *rootv1.ErrorDetail {
	if to := e.GetTo(); to < BaseFeatureLevel || to <= e.GetFrom() {
		return invalid("a feature level of %d is not above %d", to, LevelOf(e.GetFrom()))
	}
	return nil
}

// checkWhich wants a keyspace by its id or by its name.
func checkWhich(id uint32, name string) *rootv1.ErrorDetail {
	switch {
	case id == 0 && name == "":
		return invalid("the keyspace id is missing, or a name instead")
	case id != 0 && name != "":
		return invalid("keyspace id %d and name %q: give one of them", id, clip(name))
	case name != "":
		return checkName(name)
	}
	return nil
}

// checkName checks the name of a keyspace.
func checkName(name string) *rootv1.ErrorDetail {
	if name == "." || name == ".." {
		return invalid("%q is no name: as part of a path it means another folder", name)
	}
	ok := len(name) > 0 && len(name) <= MaxNameBytes
	for i := 0; ok && i < len(name); i++ {
		c := name[i]
		ok = c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.'
	}
	if !ok {
		return invalid("%q is no name: lower-case letters, digits, '-', '_', '.', 1 to %d characters", clip(name), MaxNameBytes)
	}
	return nil
}

func checkID(what, id string) *rootv1.ErrorDetail {
	if id == "" {
		return invalid("the %s is missing", what)
	}
	return checkText(what, id, MaxIDBytes)
}

// checkText refuses long texts and control characters.
func checkText(what, text string, limit int) *rootv1.ErrorDetail {
	if len(text) > limit {
		return invalid("the %s has %d bytes, at most %d fit", what, len(text), limit)
	}
	if !utf8.ValidString(text) {
		return invalid("the %s %q is not UTF-8", what, clip(text))
	}
	if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return invalid("the %s %q has control characters", what, clip(text))
	}
	return nil
}

func checkBytes(what string, b []byte, limit int) *rootv1.ErrorDetail {
	if len(b) > limit {
		return invalid("the %s has %d bytes, at most %d fit", what, len(b), limit)
	}
	return nil
}

func checkNumber(what string, n uint64) *rootv1.ErrorDetail {
	if n == 0 {
		return invalid("the %s is missing", what)
	}
	return nil
}

func clip(s string) string { return s[:min(len(s), MaxIDBytes)] }

// first is the first detail that is not nil.
func first(details ...*rootv1.ErrorDetail) *rootv1.ErrorDetail {
	for _, d := range details {
		if d != nil {
			return d
		}
	}
	return nil
}
