// Asks Porcupine whether histories are linearizable: whether the calls of each object have an order that explains all
// answers, where each call has its effect at one moment between its beginning and its end.
//
//	linearizable FILE ...
//
// A file is one history, in the form that emulators/histories/__init__.py describes. Each object is a register of its
// own. Stdout gets a line for each object that no order explains, or for which none was found in time, and last how
// much was checked. The exit code is 0 if there is no such object, 1 if there is one, and 2 if a file is no history.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

const patience = 10 * time.Minute // for all calls of one object

type call struct {
	Process   string
	Object    string
	Operation string
	Value     string  // that a put writes, or a get has found; empty: nothing is there
	Over      *string // a condition: what must be there; nil: the call has none
	Call      int64
	Return    *int64 // nil: it may have its effect at any later time
	Answer    string
}

// The register holds one value. An empty one stands for nothing.
var register = porcupine.NondeterministicModel{
	Init: func() []any { return []any{""} },
	Step: func(state, input, _ any) []any { return step(state.(string), input.(call)) },
}

// What the register may hold after the call; nothing if the call cannot have had this answer then.
func step(held string, each call) []any {
	met := each.Over == nil || *each.Over == held
	if each.Operation == "get" {
		met = each.Value == held
	}
	switch {
	case each.Answer == "no":
		return []any{held}
	case each.Answer == "failed" && !met:
		return []any{held}
	case each.Answer == "ok" && met:
		return []any{each.Value}
	case each.Answer == "unknown" && met && each.Operation != "get":
		return []any{held, each.Value}
	case each.Answer == "unknown":
		return []any{held}
	}
	return nil
}

func read(name string) (map[string][]porcupine.Operation, int, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, 0, err
	}
	defer file.Close()
	objects, count, lines := map[string][]porcupine.Operation{}, 0, json.NewDecoder(file)
	lines.DisallowUnknownFields()
	for {
		var each call
		if err := lines.Decode(&each); errors.Is(err, io.EOF) && count == 0 {
			return nil, 0, fmt.Errorf("%s has no calls", name)
		} else if errors.Is(err, io.EOF) {
			return objects, count, nil
		} else if err != nil {
			return nil, 0, fmt.Errorf("%s, call %d: %w", name, count+1, err)
		}
		count++
		end := int64(math.MaxInt64)
		if each.Return != nil {
			end = *each.Return
		}
		if !known(each) || end < each.Call {
			return nil, 0, fmt.Errorf("%s, call %d is none: %+v", name, count, each)
		}
		operation := porcupine.Operation{Input: each, Call: each.Call, Return: end}
		objects[each.Object] = append(objects[each.Object], operation)
	}
}

// Whether it is a call that the model has a meaning for.
func known(each call) bool {
	switch each.Operation {
	case "get":
		return each.Over == nil && slices.Contains([]string{"ok", "no", "unknown"}, each.Answer)
	case "put", "delete":
		fits := (each.Operation == "put") == (each.Value != "") && (each.Over != nil || each.Answer != "failed")
		return fits && slices.Contains([]string{"ok", "no", "failed", "unknown"}, each.Answer)
	}
	return false
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "give the files of one history or more")
		os.Exit(2)
	}
	calls, judged, refused, model := 0, 0, 0, register.ToModel()
	for _, name := range os.Args[1:] {
		objects, count, err := read(name)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		calls, judged = calls+count, judged+len(objects)
		for object, operations := range objects {
			switch porcupine.CheckOperationsTimeout(model, operations, patience) {
			case porcupine.Illegal:
				fmt.Printf("refused: %s: no order explains the calls of %q\n", name, object)
				refused++
			case porcupine.Unknown:
				fmt.Printf("refused: %s: within %v, no order was found of the calls of %q\n", name, patience, object)
				refused++
			}
		}
	}
	fmt.Printf("checked: %d calls of %d objects in %d histories, by Porcupine; refused: %d\n", calls, judged, len(os.Args)-1, refused)
	if refused > 0 {
		os.Exit(1)
	}
}
