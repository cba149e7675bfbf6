package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// load is clients of a caller: each tenant creates a row and reads it, over and over.
type load struct {
	url     string
	tenants int
	http    *http.Client

	done, failed, longest atomic.Int64 // of the second under way

	mu   sync.Mutex
	last error // guarded by mu
}

func newLoad(url string, tenants int) *load {
	return &load{url: url, tenants: tenants, http: &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: tenants}}}
}

// run asks until ctx ends, and says each second how that went.
func (l *load) run(ctx context.Context, say func(string)) error {
	var all sync.WaitGroup
	defer l.http.CloseIdleConnections()
	defer all.Wait()
	for i := range l.tenants {
		all.Go(func() {
			tick := time.NewTicker(100 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
					l.one(ctx, fmt.Sprintf("t-%d", i))
				}
			}
		})
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		done, failed, longest := l.done.Swap(0), l.failed.Swap(0), time.Duration(l.longest.Swap(0))
		line := fmt.Sprintf("%d round trips a second, %d failed, longest %v", done, failed, longest.Round(time.Millisecond))
		l.mu.Lock()
		if l.last != nil {
			line += ": " + l.last.Error()
			l.last = nil
		}
		l.mu.Unlock()
		say(line)
	}
}

// one creates a row and reads it.
func (l *load) one(ctx context.Context, tenant string) {
	begun := time.Now()
	made, err := ask(ctx, l.http, http.MethodPost, l.url+"/tenants/"+tenant+"/rows", "", "hello")
	if err == nil {
		var read reply
		if read, err = ask(ctx, l.http, http.MethodGet, fmt.Sprintf("%s/tenants/%s/rows/%d", l.url, tenant, made.ID), "", ""); err == nil && read.Text != "hello" {
			err = fmt.Errorf("row %d of %s is %q", made.ID, tenant, read.Text)
		}
	}
	if ctx.Err() != nil {
		return
	}
	if took := int64(time.Since(begun)); took > l.longest.Load() {
		l.longest.Store(took) // of two at once one may be lost: it is for people
	}
	if err == nil {
		l.done.Add(1)
		return
	}
	l.failed.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = err
}

// refused is an answer other than 200.
type refused struct {
	Status int
	Reason string
	Said   string
}

// Error implements error.
func (r *refused) Error() string { return fmt.Sprintf("%d %s %s", r.Status, r.Reason, r.Said) }

// ask makes a request as any HTTP client would; pin is that of a transaction, text that of a row.
func ask(ctx context.Context, c *http.Client, method, at, pin, text string) (said reply, err error) {
	var form io.Reader
	if text != "" {
		form = strings.NewReader(url.Values{"text": {text}}.Encode())
	}
	req, err := http.NewRequestWithContext(ctx, method, at, form)
	if err != nil {
		return said, err
	}
	if text != "" {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if pin != "" {
		req.Header.Set("Nokv-Pin", pin)
	}
	resp, err := c.Do(req)
	if err != nil {
		return said, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if resp.StatusCode != http.StatusOK {
		return said, &refused{Status: resp.StatusCode, Reason: resp.Header.Get("Nokv-Reason"), Said: strings.TrimSpace(string(raw))}
	}
	return said, errors.Join(err, json.Unmarshal(raw, &said))
}
