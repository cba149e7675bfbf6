package access

import (
	"github.com/nokv/nokv/mtls/principal"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	storev1 "github.com/nokv/nokv/proto/nokv/store/v1"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionalphapb "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Rule is what a role may do with a call, or with a kind of event.
type Rule uint8

// Rules. What has no row in a table is No for everybody.
const (
	No Rule = iota
	// Own: about the caller itself, by the name in its certificate, or about what
	// the rooted state says is its own.
	Own
	// Granted: in keyspaces where a grant says so.
	Granted
	// Allowed: always. Reads of regions are Allowed as calls, and judged by the
	// grants of the keyspace that they turn out to be about.
	Allowed
)

var ruleNames = [...]string{"no", "own", "granted", "yes"}

// String is the word in the documents' table.
func (r Rule) String() string { return ruleNames[r] }

// rules are one for each role.
type rules [principal.Proxy + 1]Rule

// row has what a client may do for proxies, too: these ask for clients, and by grants of their own.
func row(root, coordinator, member, client, operator Rule) rules {
	return rules{principal.Root: root, principal.Coordinator: coordinator, principal.Member: member, principal.Client: client, principal.Operator: operator, principal.Proxy: client}
}

// byProxies is a row of what proxies may, too.
func byProxies(r rules) rules {
	r[principal.Proxy] = Allowed
	return r
}

// calls are all that a gRPC server of the cluster answers, by full method.
// Columns: root, coordinator, member, client, operator.
var calls = map[string]rules{
	rootv1.Root_Propose_FullMethodName:            row(No, Own, No, No, Allowed), // judged by its events: see proposed
	rootv1.Root_ProposeStream_FullMethodName:      row(No, Own, No, No, Allowed),
	rootv1.Root_Tail_FullMethodName:               row(No, Own, No, No, Allowed), // secrets for coordinators alone
	rootv1.Root_Snapshot_FullMethodName:           row(No, Own, No, No, Allowed), // secrets for coordinators and operators' backups
	rootv1.Root_ReadIndex_FullMethodName:          row(No, Allowed, No, No, Allowed),
	rootv1.Root_ClaimTenure_FullMethodName:        row(No, Own, No, No, No),
	rootv1.Root_ConfirmTenure_FullMethodName:      row(No, Own, No, No, No),
	rootv1.Root_ConfirmStream_FullMethodName:      row(No, Own, No, No, No),
	rootv1.Root_Status_FullMethodName:             row(Allowed, Allowed, No, No, Allowed),
	rootv1.Root_TransferLeadership_FullMethodName: row(No, No, No, No, Allowed),
	rootv1.Root_ReplacePeer_FullMethodName:        row(No, No, No, No, Allowed),
	rootv1.Root_RaiseFeatureLevel_FullMethodName:  row(No, No, No, No, Allowed),

	coordinatorv1.Coordinator_GetRegionByKey_FullMethodName:   row(No, No, Allowed, Allowed, Allowed),
	coordinatorv1.Coordinator_GetRegionsByKeys_FullMethodName: row(No, No, Allowed, Allowed, Allowed),
	coordinatorv1.Coordinator_RouteStream_FullMethodName:      row(No, No, Allowed, Allowed, Allowed),
	coordinatorv1.Coordinator_GetRegion_FullMethodName:        row(No, No, Allowed, Allowed, Allowed),
	coordinatorv1.Coordinator_ScanRegions_FullMethodName:      row(No, No, Allowed, Allowed, Allowed),
	coordinatorv1.Coordinator_WatchRegions_FullMethodName:     row(No, No, Allowed, Allowed, Allowed),
	coordinatorv1.Coordinator_ListTransitions_FullMethodName:  row(No, No, Allowed, Allowed, Allowed),
	coordinatorv1.Coordinator_GetKeyspace_FullMethodName:      row(No, No, Allowed, Allowed, Allowed),
	coordinatorv1.Coordinator_ListKeyspaces_FullMethodName:    row(No, No, Allowed, Allowed, Allowed),

	coordinatorv1.Coordinator_ClaimRegions_FullMethodName: row(No, No, Allowed, Allowed, Allowed), // judged by the grants of the keyspace

	coordinatorv1.Coordinator_AllocID_FullMethodName:       row(No, No, Allowed, Allowed, Allowed),
	coordinatorv1.Coordinator_AllocIDStream_FullMethodName: row(No, No, Allowed, Allowed, Allowed),
	coordinatorv1.Coordinator_Tso_FullMethodName:           row(No, No, Allowed, Allowed, Allowed),
	coordinatorv1.Coordinator_TsoStream_FullMethodName:     row(No, No, Allowed, Allowed, Allowed),

	coordinatorv1.Coordinator_PublishRootEvent_FullMethodName:  row(No, No, Own, Granted, Allowed), // judged by their events: see published
	coordinatorv1.Coordinator_PublishRootEvents_FullMethodName: row(No, No, Own, Granted, Allowed),
	coordinatorv1.Coordinator_PublishStream_FullMethodName:     row(No, No, Own, Granted, Allowed),
	coordinatorv1.Coordinator_AssessRootEvent_FullMethodName:   row(No, No, Own, Granted, Allowed),
	coordinatorv1.Coordinator_RemoveRegion_FullMethodName:      row(No, No, Own, Granted, Allowed),
	coordinatorv1.Coordinator_AssignRegions_FullMethodName:     row(No, No, No, Granted, Allowed),
	coordinatorv1.Coordinator_CreateKeyspace_FullMethodName:    row(No, No, No, Granted, Allowed),
	coordinatorv1.Coordinator_UpdateKeyspace_FullMethodName:    row(No, No, No, Granted, Allowed),
	coordinatorv1.Coordinator_DeleteKeyspace_FullMethodName:    row(No, No, No, Granted, Allowed),

	coordinatorv1.Coordinator_RegisterMember_FullMethodName:    row(No, No, Own, No, Allowed),
	coordinatorv1.Coordinator_DrainMember_FullMethodName:       row(No, No, Own, No, Allowed),
	coordinatorv1.Coordinator_StoreHeartbeat_FullMethodName:    row(No, No, Own, No, No),
	coordinatorv1.Coordinator_RegionHeartbeat_FullMethodName:   row(No, No, Own, No, No),
	coordinatorv1.Coordinator_MemberStream_FullMethodName:      row(No, Own, Own, No, No), // of a coordinator: passed on for a member
	coordinatorv1.Coordinator_HeardMembers_FullMethodName:      row(No, Allowed, No, No, No),
	coordinatorv1.Coordinator_FailMember_FullMethodName:        row(No, No, No, No, Allowed),
	coordinatorv1.Coordinator_RemoveMember_FullMethodName:      row(No, No, No, No, Allowed),
	coordinatorv1.Coordinator_RotatePinKey_FullMethodName:      row(No, No, No, No, Allowed),
	coordinatorv1.Coordinator_PinKeys_FullMethodName:           row(No, No, Allowed, Granted, No), // members: judged by host, clients by publish
	coordinatorv1.Coordinator_ResolvePin_FullMethodName:        row(No, No, Allowed, Allowed, Allowed),
	coordinatorv1.Coordinator_RemoveCoordinator_FullMethodName: row(No, No, No, No, Allowed),
	coordinatorv1.Coordinator_EndTenure_FullMethodName:         row(No, No, No, No, Allowed),

	coordinatorv1.Coordinator_GrantAccess_FullMethodName:  row(No, No, No, No, Allowed),
	coordinatorv1.Coordinator_RevokeAccess_FullMethodName: row(No, No, No, No, Allowed),
	coordinatorv1.Coordinator_ListGrants_FullMethodName:   row(No, No, No, No, Allowed),
	coordinatorv1.Coordinator_CheckAccess_FullMethodName:  byProxies(row(No, No, No, No, Allowed)), // about whoever asks them

	coordinatorv1.Coordinator_CreateToken_FullMethodName:    row(No, No, No, No, Allowed),
	coordinatorv1.Coordinator_RevokeToken_FullMethodName:    row(No, No, No, No, Allowed),
	coordinatorv1.Coordinator_RotateTokenKey_FullMethodName: row(No, No, No, No, Allowed),
	coordinatorv1.Coordinator_WatchRevoked_FullMethodName:   byProxies(row(No, No, Allowed, No, Allowed)),

	coordinatorv1.Coordinator_Plan_FullMethodName:      row(No, No, No, Allowed, Allowed),
	coordinatorv1.Coordinator_ApplyPlan_FullMethodName: row(No, No, No, No, Allowed),

	coordinatorv1.Coordinator_ListMembers_FullMethodName:      row(No, No, Allowed, Allowed, Allowed),
	coordinatorv1.Coordinator_ListCoordinators_FullMethodName: row(No, No, Allowed, Allowed, Allowed),
	coordinatorv1.Coordinator_Status_FullMethodName:           row(No, Allowed, Allowed, Allowed, Allowed),
	coordinatorv1.Coordinator_Witness_FullMethodName:          row(No, No, Allowed, Allowed, Allowed),
	coordinatorv1.Coordinator_RegionNotes_FullMethodName:      row(No, No, Allowed, Allowed, Allowed),
	coordinatorv1.Coordinator_ReleaseRegion_FullMethodName:    row(No, No, No, No, Allowed),

	// What a store serves is for all who are of the cluster: it does not know the grants.
	storev1.Store_Get_FullMethodName:            row(No, No, Allowed, Allowed, Allowed),
	storev1.Store_Put_FullMethodName:            row(No, No, Allowed, Allowed, Allowed),
	storev1.Store_Delete_FullMethodName:         row(No, No, Allowed, Allowed, Allowed),
	storev1.Store_Scan_FullMethodName:           row(No, No, Allowed, Allowed, Allowed),
	storev1.Store_Split_FullMethodName:          row(No, No, No, No, Allowed),
	storev1.Store_Merge_FullMethodName:          row(No, No, No, No, Allowed),
	storev1.Store_TransferLeader_FullMethodName: row(No, No, No, No, Allowed),
	storev1.Store_Import_FullMethodName:         row(No, No, Allowed, No, No), // of who leads the region: see store/host
	storev1.Store_Status_FullMethodName:         row(No, No, Allowed, Allowed, Allowed),

	healthpb.Health_Check_FullMethodName: row(Allowed, Allowed, Allowed, Allowed, Allowed),
	healthpb.Health_List_FullMethodName:  row(Allowed, Allowed, Allowed, Allowed, Allowed),
	healthpb.Health_Watch_FullMethodName: row(Allowed, Allowed, Allowed, Allowed, Allowed),

	reflectionpb.ServerReflection_ServerReflectionInfo_FullMethodName:      row(No, No, No, No, Allowed),
	reflectionalphapb.ServerReflection_ServerReflectionInfo_FullMethodName: row(No, No, No, No, Allowed),
}

// kind is what may become of an event.
type kind struct {
	// published: what may be published at a coordinator, by PublishRootEvent and its like.
	published rules
	// proposed: what the root takes, by whatever call it was asked for. Of a coordinator
	// that names somebody who asked it, it takes what that role may ask for; the
	// coordinator's own column is for what it does by itself.
	proposed rules
}

// kinds are all kinds of events, by number in rootv1.Event. Columns: root,
// coordinator, member, client, operator.
var kinds = byNumber(map[protoreflect.Name]kind{
	// Root peers make these by themselves, or for calls of their own.
	"cluster_bootstrapped": {nobody, nobody},
	"feature_level_raised": {nobody, nobody},
	"root_peer_added":      {nobody, nobody},
	"root_peer_promoted":   {nobody, nobody},
	"root_peers_settled":   {nobody, nobody},
	"root_peer_dropped":    {nobody, nobody},

	// A coordinator's authority, and that it is there.
	"fence_extended":     {nobody, row(No, Own, No, No, No)},
	"tenure_claimed":     {nobody, row(No, Own, No, No, No)},
	"tenure_retired":     {nobody, row(No, Own, No, No, No)},
	"handover_advanced":  {nobody, row(No, Own, No, No, No)},
	"coordinator_joined": {nobody, row(No, Own, No, No, No)},
	"coordinator_left":   {nobody, row(No, Own, No, No, Allowed)},

	// What operators change by calls of its own.
	"tenure_ended":             {nobody, row(No, Allowed, No, No, Allowed)}, // by a coordinator: of a holder that is cut off
	"access_granted":           {nobody, operators},
	"access_revoked":           {nobody, operators},
	"pin_key_rotated":          {nobody, operators},
	"token_key_rotated":        {nobody, operators},
	"token_revoked":            {nobody, operators},
	"cluster_settings_changed": {nobody, operators},

	"member_joined":        {nobody, row(No, No, Own, No, Allowed)},
	"member_state_changed": {operators, row(No, Allowed, Own, No, Allowed)},

	"keyspace_created": {granted, granted},
	"keyspace_updated": {granted, granted},
	"keyspace_deleted": {granted, granted},

	// What members that report their regions say has become of them; see state.Owns.
	"region_published":     {reported, owned},
	"split_planned":        {reported, owned},
	"merge_planned":        {reported, owned},
	"transition_completed": {reported, owned}, // of a split or a merge
	"region_tombstoned":    {granted, owned},  // by RemoveRegion

	// Members of regions that are assigned report what they have let go of and are ready
	// for, and the holder of the Tenure makes of that what is rooted.
	"region_bootstrapped":  {granted, planned},
	"regions_assigned":     {granted, planned},
	"peer_change_planned":  {granted, planned},
	"move_planned":         {granted, planned},
	"move_ready":           {granted, planned},
	"transition_cancelled": {granted, planned},
})

var (
	nobody    = row(No, No, No, No, No)
	operators = row(No, No, No, No, Allowed)
	granted   = row(No, No, No, Granted, Allowed)
	reported  = row(No, No, Own, Granted, Allowed)
	owned     = row(No, Allowed, Own, Granted, Allowed)
	planned   = row(No, Allowed, No, Granted, Allowed)
)

// byNumber finds the kinds' numbers. A name that is no kind's stands for none.
func byNumber(names map[protoreflect.Name]kind) map[protoreflect.FieldNumber]kind {
	numbers := make(map[protoreflect.FieldNumber]kind, len(names))
	for name, k := range names {
		numbers[kindFields.ByName(name).Number()] = k
	}
	return numbers
}

// kindOf is the oneof of rootv1.Event, kindFields what stands in it.
var (
	kindOf     = (*rootv1.Event)(nil).ProtoReflect().Descriptor().Oneofs().ByName("kind")
	kindFields = kindOf.Fields()
)

// Of is what a role may do with a call, by its full method.
func Of(method string, role principal.Role) Rule { return calls[method][role] }

// OfEvent is what a role may do with the kind of an event: publish it at a
// coordinator, and have the root take it.
func OfEvent(e *rootv1.Event, role principal.Role) (published, proposed Rule) {
	k := kinds[number(e)]
	return k.published[role], k.proposed[role]
}

// named is whom a request of a role speaks for; false: it speaks for nobody.
func named(request any, as principal.Role) (string, bool) {
	switch r := request.(type) {
	case *rootv1.TailRequest:
		return r.GetReaderId(), true
	case *rootv1.SnapshotRequest:
		return r.GetReaderId(), true
	case *rootv1.ClaimTenureRequest:
		return r.GetClaim().GetHolderId(), true
	case *rootv1.ConfirmTenureRequest:
		return r.GetHolderId(), true
	case *coordinatorv1.RegisterMemberRequest:
		return r.GetMember().GetId(), true
	case *coordinatorv1.DrainMemberRequest:
		return r.GetMemberId(), true
	case *coordinatorv1.MemberFrame:
		if as == principal.Coordinator { // it passes a member's stream on, which it has judged
			return r.GetHello().GetRelayedBy(), r.GetHello() != nil
		}
		return r.GetHello().GetMemberId(), r.GetHello() != nil
	case *coordinatorv1.StoreHeartbeatRequest:
		return r.GetMemberId(), true
	case *coordinatorv1.RegionHeartbeatRequest:
		return r.GetMemberId(), true
	}
	return "", false
}
