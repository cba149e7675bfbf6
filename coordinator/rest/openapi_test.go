package rest

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
)

var rewrite = flag.Bool("rewrite-openapi", false, "write docs/openapi.json anew")

const openAPIFile = "../../docs/openapi.json"

// The document that is served is what the proto files and the routes say.
func TestOpenAPIDocumentIsOfTheProto(t *testing.T) {
	d := &drawing{schemas: object{}, comments: protoComments(t)}
	raw, err := json.MarshalIndent(d.document(), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	raw = append(raw, '\n')
	if *rewrite {
		if err := os.WriteFile(openAPIFile, raw, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(openAPIFile)
	if err != nil || !bytes.Equal(have, raw) {
		t.Fatalf("docs/openapi.json is stale (%v): go test ./coordinator/rest -run OpenAPI -rewrite-openapi", err)
	}
}

// Every call with one request has a route, which says all that there is to say; but for WatchRevoked, which processes
// with certificates ask for by gRPC.
func TestEveryCallHasARoute(t *testing.T) {
	routed := map[string]bool{}
	for _, c := range calls() {
		routed[c.method] = true
		for _, f := range c.fields {
			if c.in.Descriptor().Fields().ByName(protoreflect.Name(f)) == nil {
				t.Errorf("%s: %s has no field %s", c.path, c.method, f)
			}
		}
	}
	methods := protoreflect.ServiceDescriptor(calls()[0].service()).Methods()
	for i := range methods.Len() {
		if m := methods.Get(i); (!m.IsStreamingClient() && m.Name() != "WatchRevoked") != routed[string(m.Name())] {
			t.Errorf("%s has a route: %t", m.Name(), routed[string(m.Name())])
		}
	}
}

type object = map[string]any

// drawing makes the document.
type drawing struct {
	schemas  object
	comments map[string]string
}

func (c *call) service() protoreflect.ServiceDescriptor {
	return c.in.Descriptor().ParentFile().Services().ByName("Coordinator")
}

func (d *drawing) document() object {
	paths := object{}
	seen := map[string]int{}
	add := func(r route, operation object) {
		at, _ := paths[r.path].(object)
		if at == nil {
			at = object{}
			paths[r.path] = at
		}
		at[strings.ToLower(r.verb)] = operation
	}
	for _, c := range calls() {
		id := c.method
		if seen[id]++; seen[id] > 1 {
			id += fmt.Sprint(seen[id])
		}
		text := d.comments["nokv.coordinator.v1.Coordinator."+c.method]
		kind := "application/json"
		if c.stream {
			kind = "text/event-stream"
			text += " Events are changes, snapshot, alive (once a second at least) and problem, the last one. The id of one is the position behind it: whoever sends it as Last-Event-ID goes on there without a gap."
		}
		op := object{
			"operationId": id, "description": text, "x-nokv-method": c.full, "parameters": d.parameters(c),
			"responses": answers(kind, d.ref(c.out.Descriptor())),
		}
		if c.changes() {
			op["requestBody"] = object{"required": true, "content": object{"application/json": object{"schema": d.ref(c.in.Descriptor())}}}
		}
		add(c.route, op)
	}
	for _, o := range operations {
		op := object{"operationId": o.method, "description": o.summary, "responses": answers("application/json", object{"type": "object"})}
		params := []any{}
		if strings.Contains(o.path, "{") {
			params = append(params, parameter("instanceId", "path", object{"type": "string"}, "Id of the member."))
		}
		if o.changes() {
			properties := object{}
			for _, f := range o.fields {
				properties[f[0]] = object{"type": f[1], "description": f[2]}
			}
			op["requestBody"] = object{"required": true, "content": object{"application/json": object{"schema": object{"type": "object", "additionalProperties": false, "properties": properties}}}}
			params = append(params, headers()...)
		} else {
			params = append(params, d.query(find("ListMembers"))...)
		}
		op["parameters"] = params
		add(o.route, op)
	}
	paths["/health"] = object{"get": object{
		"operationId": "health", "description": "Whether the coordinator serves: 200, or 503 with what is wrong; for everybody. Who may ask for Status is told what there is in the cluster.",
		"responses": object{"200": content("It serves.", "application/json", object{"type": "object"}), "503": content("It does not.", "application/json", object{"type": "object"})},
	}}
	d.schemas["Problem"] = object{"type": "object", "description": "A refusal, by RFC 9457, with the fields of nokv.root.v1.ErrorDetail.", "properties": object{
		"type": object{"type": "string"}, "title": object{"type": "string"}, "status": object{"type": "integer"}, "detail": object{"type": "string"},
		"reason": object{"type": "string", "description": "Code of the reason, as in the details of gRPC."}, "way_out": object{"type": "string"},
	}}
	return object{
		"openapi":    "3.0.3",
		"info":       object{"title": "NoKV coordinator", "version": "v1", "description": "The calls of a coordinator as JSON. Names are those of the proto files, 64-bit numbers are strings, bytes are base64 in bodies and text with \\xNN in paths and parameters."},
		"paths":      paths,
		"components": object{"schemas": d.schemas, "securitySchemes": object{"token": object{"type": "http", "scheme": "bearer"}}},
		"security":   []any{object{}, object{"token": []any{}}},
	}
}

func answers(kind string, schema object) object {
	return object{"200": content("The answer.", kind, schema), "default": content("A refusal.", "application/problem+json", object{"$ref": "#/components/schemas/Problem"})}
}

func content(text, kind string, schema object) object {
	return object{"description": text, "content": object{kind: object{"schema": schema}}}
}

func parameter(name, in string, schema object, text string) object {
	p := object{"name": name, "in": in, "schema": schema, "description": text}
	if in == "path" {
		p["required"] = true
	}
	return p
}

// headers are those of a request that changes something.
func headers() []any {
	return []any{
		parameter(HeaderCluster, "header", object{"type": "string"}, "Cluster that the request is for, 16 hexadecimal digits: what changes something, or gives out ids or timestamps, needs it. Every answer has it."),
		parameter(HeaderWhy, "header", object{"type": "string"}, "Why the change is made, percent-encoded: for the log."),
		parameter(HeaderTimeout, "header", object{"type": "string"}, fmt.Sprintf("How long the call may take, such as 2s: %v at most.", MaxTimeout)),
	}
}

func (d *drawing) parameters(c *call) []any {
	all := []any{}
	for _, name := range c.fields {
		f := c.in.Descriptor().Fields().ByName(protoreflect.Name(name))
		all = append(all, parameter(name, "path", d.said(f), d.comments[string(f.FullName())]))
	}
	if c.changes() {
		return append(all, headers()...)
	}
	all = append(all, d.query(c)...)
	if c.stream {
		all = append(all, parameter("Last-Event-ID", "header", object{"type": "string"}, "Id of the last event that was taken."))
	}
	return all
}

// query are the fields of a request that its path does not have.
func (d *drawing) query(c *call) []any {
	var all []any
	var walk func(m protoreflect.MessageDescriptor, prefix string)
	walk = func(m protoreflect.MessageDescriptor, prefix string) {
		for i := range m.Fields().Len() {
			f := m.Fields().Get(i)
			switch {
			case prefix == "" && slices.Contains(c.fields, string(f.Name())), f.IsMap():
			case f.Message() != nil && shorthands[f.Message().FullName()] == nil:
				if !f.IsList() {
					walk(f.Message(), prefix+string(f.Name())+".")
				}
			default:
				all = append(all, parameter(prefix+string(f.Name()), "query", d.said(f), d.comments[string(f.FullName())]))
			}
		}
	}
	walk(c.in.Descriptor(), "")
	return all
}

// said is a field as it is written in a path or parameter.
func (d *drawing) said(f protoreflect.FieldDescriptor) object {
	s := object{"type": "string"}
	switch f.Kind() {
	case protoreflect.BoolKind:
		s["type"] = "boolean"
	case protoreflect.EnumKind:
		s["enum"] = enumWords(f.Enum())
	case protoreflect.Uint32Kind:
		s["type"] = "integer"
	case protoreflect.MessageKind:
		s["pattern"] = `^\d+\.\d+\.\d+$`
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		s["format"] = "uint64"
	}
	if f.IsList() {
		return object{"type": "array", "items": s}
	}
	return s
}

// ref is a message's schema, which is made when it is first met.
func (d *drawing) ref(m protoreflect.MessageDescriptor) object {
	name := strings.TrimPrefix(strings.TrimPrefix(string(m.FullName()), "nokv."), "coordinator.v1.")
	if _, done := d.schemas[name]; !done {
		properties := object{}
		schema := object{"type": "object", "additionalProperties": false, "properties": properties}
		d.schemas[name] = schema
		if text := d.comments[string(m.FullName())]; text != "" {
			schema["description"] = text
		}
		for i := range m.Fields().Len() {
			f := m.Fields().Get(i)
			properties[string(f.Name())] = d.field(f)
		}
	}
	return object{"$ref": "#/components/schemas/" + name}
}

func (d *drawing) field(f protoreflect.FieldDescriptor) object {
	if f.IsMap() {
		return d.told(object{"type": "object", "additionalProperties": d.kind(f.MapValue())}, f)
	}
	s := d.kind(f)
	if f.IsList() {
		s = object{"type": "array", "items": s}
	}
	return d.told(s, f)
}

// told adds what the proto file says. What stands beside a reference counts for nothing.
func (d *drawing) told(s object, f protoreflect.FieldDescriptor) object {
	text := d.comments[string(f.FullName())]
	if text == "" {
		return s
	}
	if s["$ref"] != nil {
		s = object{"allOf": []any{s}}
	}
	s["description"] = text
	return s
}

func (d *drawing) kind(f protoreflect.FieldDescriptor) object {
	switch f.Kind() {
	case protoreflect.MessageKind:
		return d.ref(f.Message())
	case protoreflect.EnumKind:
		var all []string
		for i := range f.Enum().Values().Len() {
			all = append(all, string(f.Enum().Values().Get(i).Name()))
		}
		return object{"type": "string", "enum": all}
	case protoreflect.BoolKind:
		return object{"type": "boolean"}
	case protoreflect.Uint32Kind:
		return object{"type": "integer", "format": "int64"}
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return object{"type": "string", "format": "uint64"}
	case protoreflect.DoubleKind:
		return object{"type": "number", "format": "double"}
	case protoreflect.BytesKind:
		return object{"type": "string", "format": "byte"}
	default:
		return object{"type": "string"}
	}
}

var (
	declares = regexp.MustCompile(`^(message|enum|service|oneof)\s+(\w+)\s*\{(\})?`)
	calling  = regexp.MustCompile(`^rpc\s+(\w+)`)
	fielding = regexp.MustCompile(`^(?:optional |repeated )?[\w.<>, ]+\s(\w+)\s*=\s*\d+`)
	packages = regexp.MustCompile(`^package\s+([\w.]+);`)
)

// protoComments are what the proto files say above what they declare, by full name.
func protoComments(t *testing.T) map[string]string {
	out := map[string]string{}
	files, err := filepath.Glob("../../proto/nokv/*/v1/*.proto")
	if err != nil || len(files) == 0 {
		t.Fatalf("no proto files: %v", err)
	}
	for _, name := range files {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		readComments(string(raw), out)
	}
	if out["nokv.coordinator.v1.Coordinator.GetRegion"] == "" || out["nokv.root.v1.RootToken.term"] == "" || out["nokv.root.v1.Layout.Slots.count"] == "" {
		t.Fatal("comments of the proto files were not found")
	}
	return out
}

func readComments(text string, out map[string]string) {
	var scope []string // "" for a oneof, whose fields are its message's
	var above []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		full := func(name string) string {
			return strings.Join(append(slices.DeleteFunc(slices.Clone(scope), func(s string) bool { return s == "" }), name), ".")
		}
		if comment, ok := strings.CutPrefix(line, "//"); ok {
			above = append(above, strings.TrimSpace(comment))
			continue
		}
		if m := packages.FindStringSubmatch(line); m != nil {
			scope = []string{m[1]}
		} else if m := declares.FindStringSubmatch(line); m != nil {
			out[full(m[2])] = strings.Join(above, " ")
			if name := m[2]; m[3] == "" {
				if m[1] == "oneof" {
					name = ""
				}
				scope = append(scope, name)
			}
		} else if m := calling.FindStringSubmatch(line); m != nil {
			out[full(m[1])] = strings.Join(above, " ")
		} else if m := fielding.FindStringSubmatch(line); m != nil {
			out[full(m[1])] = strings.Join(above, " ")
		} else if line == "}" && len(scope) > 1 {
			scope = scope[:len(scope)-1]
		}
		above = nil
	}
}

// No GET is a way to a call that changes something, or hands something out: see also
// TestRESTReadsChangeNothing of coordinator/server.
func TestReadsAreGets(t *testing.T) {
	for _, c := range calls() {
		word := strings.HasPrefix(c.method, "Get") || strings.HasPrefix(c.method, "List") || strings.HasPrefix(c.method, "Scan") ||
			slices.Contains([]string{"Status", "Witness", "WatchRegions", "RegionNotes"}, c.method)
		if c.verb == http.MethodGet && !word {
			t.Errorf("GET %s is %s", c.path, c.method)
		}
	}
}
