package catalog

import (
	"math"
	"reflect"
	"testing"

	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
)

// What is kept of a report is all of it, each field by itself, and its phase fits.
func TestKeptReports(t *testing.T) {
	full := OwnReport{
		Epoch: state.Epoch{Version: 1, ConfVersion: 2}, Phase: 3, Leader: true, Saturated: true, FrontierSet: true, Calling: true, IdleSeconds: 4,
		Load: 5, Keys: 6, Bytes: 7, Frontier: "8", At: 9, More: &OwnReportMore{Error: "10"},
	}
	all := reflect.ValueOf(full)
	for i := range all.NumField() {
		var r OwnReport
		reflect.ValueOf(&r).Elem().Field(i).Set(all.Field(i))
		if all.Field(i).IsZero() {
			t.Errorf("%s is not looked at", all.Type().Field(i).Name)
		}
		if k := keep(&r); !reflect.DeepEqual(k.report(), r) {
			t.Errorf("%+v comes back as %+v", r, k.report())
		}
	}
	if k := keep(&full); !reflect.DeepEqual(k.report(), full) {
		t.Errorf("%+v comes back as %+v", full, k.report())
	}
	for n := range coordinatorv1.RegionPhase_name {
		if n < 0 || n > math.MaxUint8 {
			t.Errorf("phase %d has no room", n)
		}
	}
}
