package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
)

// checkFields walks the JSON beside File's types and names the first field
// that File does not have, or that stands twice, with its line. encoding/json
// can refuse unknown fields but not say where they are.
func checkFields(raw []byte) error {
	w := &walker{raw: raw, dec: json.NewDecoder(bytes.NewReader(raw))}
	if err := w.value(reflect.TypeFor[File](), ""); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			return fmt.Errorf("line %d: %w", lineAt(raw, syntax.Offset), err)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return fmt.Errorf("line %d: the file ends too early", lineAt(raw, int64(len(raw))))
		}
		return err
	}
	if _, err := w.dec.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("line %d: text behind the end of the config", lineAt(raw, w.dec.InputOffset()))
	}
	return nil
}

type walker struct {
	raw []byte
	dec *json.Decoder
}

func (w *walker) value(t reflect.Type, path string) error {
	tok, err := w.dec.Token()
	if err != nil {
		return err
	}
	switch tok {
	case json.Delim('{'):
		return w.object(t, path)
	case json.Delim('['):
		return w.array(t, path)
	}
	return nil
}

func (w *walker) object(t reflect.Type, path string) error {
	if t.Kind() != reflect.Struct {
		return fmt.Errorf("line %d: %s is an object, want %s", w.line(), path, t)
	}
	seen := make(map[string]bool)
	for w.dec.More() {
		tok, err := w.dec.Token()
		if err != nil {
			return err
		}
		name := tok.(string)
		field, ok := fieldNamed(t, name)
		if !ok {
			return fmt.Errorf("line %d: unknown field %q%s; known: %s", w.line(), name, in(path), strings.Join(fieldNames(t), ", "))
		}
		if seen[name] {
			return fmt.Errorf("line %d: field %q%s stands twice", w.line(), name, in(path))
		}
		seen[name] = true
		if err := w.value(field.Type, strings.TrimPrefix(path+"."+name, ".")); err != nil {
			return err
		}
	}
	_, err := w.dec.Token()
	return err
}

func (w *walker) array(t reflect.Type, path string) error {
	if t.Kind() != reflect.Slice {
		return fmt.Errorf("line %d: %s is a list, want %s", w.line(), path, t)
	}
	for i := 0; w.dec.More(); i++ {
		if err := w.value(t.Elem(), fmt.Sprintf("%s[%d]", path, i)); err != nil {
			return err
		}
	}
	_, err := w.dec.Token()
	return err
}

func (w *walker) line() int { return lineAt(w.raw, w.dec.InputOffset()) }

func in(path string) string {
	if path == "" {
		return ""
	}
	return " in " + path
}

func fieldNamed(t reflect.Type, name string) (reflect.StructField, bool) {
	for i := range t.NumField() {
		if jsonName(t.Field(i)) == name {
			return t.Field(i), true
		}
	}
	return reflect.StructField{}, false
}

func fieldNames(t reflect.Type) []string {
	names := make([]string, 0, t.NumField())
	for i := range t.NumField() {
		names = append(names, jsonName(t.Field(i)))
	}
	return names
}

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}
