package rest

import (
	"net/http"
	"strings"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// route is a call as it is asked for over HTTP. What stands in braces in its path are
// fields of the request; those of a GET that are not there are parameters, those of a
// POST a JSON body.
type route struct {
	verb, path string
	method     string // of the service
}

// routes are all calls that have one request, and one answer or a stream of them. A GET
// changes nothing.
var routes = []route{
	{"GET", "/v1/status", "Status"},
	{"GET", "/v1/witness", "Witness"},
	{"GET", "/v1/coordinators", "ListCoordinators"},
	{"POST", "/v1/coordinators/{coordinator_id}/remove", "RemoveCoordinator"},
	{"POST", "/v1/tenure/end", "EndTenure"},

	{"GET", "/v1/keyspaces", "ListKeyspaces"},
	{"POST", "/v1/keyspaces", "CreateKeyspace"},
	{"GET", "/v1/keyspaces/{name}", "GetKeyspace"},
	{"POST", "/v1/keyspaces/{name}/update", "UpdateKeyspace"},
	{"POST", "/v1/keyspaces/{name}/delete", "DeleteKeyspace"},

	{"GET", "/v1/keyspaces/{keyspace}/keys/{key}", "GetRegionByKey"},
	{"POST", "/v1/keyspaces/{keyspace}/lookup", "GetRegionsByKeys"},
	{"POST", "/v1/keyspaces/{keyspace}/claim", "ClaimRegions"},
	{"GET", "/v1/keyspaces/{keyspace}/regions", "ScanRegions"},
	{"GET", "/v1/keyspaces/{keyspace}/watch", "WatchRegions"},
	{"GET", "/v1/watch", "WatchRegions"},
	{"GET", "/v1/regions/{region_id}", "GetRegion"},
	{"POST", "/v1/regions/{region_id}/remove", "RemoveRegion"},
	{"POST", "/v1/regions/{region_id}/release", "ReleaseRegion"},
	{"POST", "/v1/regions/assign", "AssignRegions"},
	{"GET", "/v1/region-notes", "RegionNotes"},
	{"GET", "/v1/transitions", "ListTransitions"},

	{"POST", "/v1/ids", "AllocID"},
	{"POST", "/v1/timestamps", "Tso"},

	{"POST", "/v1/events", "PublishRootEvent"},
	{"POST", "/v1/events/assess", "AssessRootEvent"},
	{"POST", "/v1/commands", "PublishRootEvents"},

	{"GET", "/v1/members", "ListMembers"},
	{"POST", "/v1/members", "RegisterMember"},
	{"POST", "/v1/members/heard", "HeardMembers"},
	{"POST", "/v1/members/{member_id}/drain", "DrainMember"},
	{"POST", "/v1/members/{member_id}/fail", "FailMember"},
	{"POST", "/v1/members/{member_id}/remove", "RemoveMember"},
	{"POST", "/v1/members/{member_id}/heartbeat", "StoreHeartbeat"},
	{"POST", "/v1/members/{member_id}/region-heartbeat", "RegionHeartbeat"},

	{"GET", "/v1/grants", "ListGrants"},
	{"POST", "/v1/grants", "GrantAccess"},
	{"POST", "/v1/grants/revoke", "RevokeAccess"},
	{"POST", "/v1/tokens", "CreateToken"},
	{"POST", "/v1/tokens/{id}/revoke", "RevokeToken"},
	{"POST", "/v1/token-keys/rotate", "RotateTokenKey"},
	{"POST", "/v1/pin-keys/rotate", "RotatePinKey"},
	// Secrets are neither in an address nor in an answer that a page can ask for.
	{"POST", "/v1/access", "CheckAccess"},
	{"POST", "/v1/keyspaces/{keyspace}/pin-keys", "PinKeys"},
	{"POST", "/v1/keyspaces/{keyspace}/resolve-pin", "ResolvePin"},

	{"POST", "/v1/plan", "Plan"},
	{"POST", "/v1/plan/{plan_id}/apply", "ApplyPlan"},

	// The names that the requirements have for it.
	{"GET", "/api/coordinator/instances", "ListMembers"},
}

// call is a route with what its method takes and answers.
type call struct {
	route
	full    string // name of the method on the wire
	in, out protoreflect.MessageType
	stream  bool
	fields  []string // of the path
}

// calls completes the table.
func calls() []*call {
	service := coordinatorv1.File_nokv_coordinator_v1_coordinator_proto.Services().ByName("Coordinator")
	var all []*call
	for _, r := range routes {
		m := service.Methods().ByName(protoreflect.Name(r.method))
		c := &call{route: r, full: "/" + string(service.FullName()) + "/" + r.method, in: typeOf(m.Input()), out: typeOf(m.Output()), stream: m.IsStreamingServer()}
		for _, part := range strings.Split(r.path, "/") {
			if name, ok := strings.CutPrefix(part, "{"); ok {
				c.fields = append(c.fields, strings.TrimSuffix(name, "}"))
			}
		}
		all = append(all, c)
	}
	return all
}

// typeOf is the generated type of a message.
func typeOf(d protoreflect.MessageDescriptor) protoreflect.MessageType {
	t, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		panic("rest: " + string(d.FullName()) + " is not linked in: " + err.Error())
	}
	return t
}

func (c *call) request() proto.Message { return c.in.New().Interface() }
func (c *call) answer() proto.Message  { return c.out.New().Interface() }

// changes says whether the call may change anything, a number that is handed out too.
func (r route) changes() bool { return r.verb == http.MethodPost }
