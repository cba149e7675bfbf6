// Package channel says who may reach a process, for its status and its numbers.
package channel

import (
	"strings"
	"time"

	"github.com/nokv/nokv/mtls"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Channel is how a process takes connections.
type Channel struct {
	// Certs are its certificates; nil: it has none.
	Certs *mtls.Source
	// Insecure says that it has none, and addresses that are not loopback.
	Insecure bool
}

// Kind is who may reach the process.
func (c Channel) Kind() rootv1.Channel {
	switch {
	case c.Certs != nil:
		return rootv1.Channel_CHANNEL_TLS
	case c.Insecure:
		return rootv1.Channel_CHANNEL_INSECURE
	}
	return rootv1.Channel_CHANNEL_LOOPBACK
}

// Ends is when its certificate ends, in seconds since 1970; 0 without one.
func (c Channel) Ends() uint64 {
	if c.Certs == nil {
		return 0
	}
	return uint64(max(c.Certs.Expires().Unix(), 1))
}

// Vars is a Channel at /debug/vars. The field names stay.
type Vars struct {
	// Channel is tls, loopback or insecure.
	Channel string `json:"channel"`
	// Principal is ROLE/NAME of the certificate, and CertificateDays the days until
	// it ends, or the CA's that signed it if that is earlier. Absent without one.
	Principal       string   `json:"principal,omitempty"`
	CertificateDays *float64 `json:"certificate_days,omitempty"`
}

// Vars shows a channel.
func (c Channel) Vars() Vars {
	v := Vars{Channel: Name(c.Kind()), Principal: c.Certs.Principal().Actor()}
	if c.Certs != nil {
		days := Days(c.Ends(), time.Now())
		v.CertificateDays = &days
	}
	return v
}

// Name is a kind in a word; empty when it is not known.
func Name(kind rootv1.Channel) string {
	if kind == rootv1.Channel_CHANNEL_UNSPECIFIED {
		return ""
	}
	return strings.ToLower(strings.TrimPrefix(kind.String(), "CHANNEL_"))
}

// Days are the days from now until a certificate ends, to a hundredth.
func Days(endsUnixSeconds uint64, now time.Time) float64 {
	left := time.Unix(int64(endsUnixSeconds), 0).Sub(now)
	return float64(int64(left.Hours()/24*100)) / 100
}
