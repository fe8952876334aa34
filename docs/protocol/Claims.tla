------------------------------- MODULE Claims -------------------------------
(***************************************************************************)
(* Claims and heartbeats alone: one entry, its owner "W", and recoveries   *)
(* that all want it.  An entry has an owner and the number of the attempt; *)
(* both are what a compare-and-swap of it compares.                        *)
(*                                                                         *)
(* The model does not say when an entry is stale: anybody may claim it at  *)
(* any moment.  Protocol.tla goes further, and lets several recoveries     *)
(* work on one entry.  I1 to I5 do not need what is checked here.          *)
(***************************************************************************)
EXTENDS Integers, Sequences

CONSTANTS
    Guards,                     \* the rules that are followed
    Recoveries,                 \* the workers that want the entry
    Beside,                     \* ... of which these run in one instance, "R"; each other one is an instance of its own
    Releases                    \* they may give it back

VARIABLES
    entry,                      \* what is stored
    holder,                     \* ghost: the worker that recorded or claimed it last
    pc,                         \* where each worker is: start, claim, held, end
    value,                      \* what each worker has read, or holds
    wrong,                      \* ghost: the promises that were broken
    did                         \* ghost: the last step in words; no part of the VIEW

vars == <<entry, holder, pc, value, wrong, did>>
View == <<entry, holder, pc, value, wrong>>

On(guard) == guard \in Guards
Workers == {"W"} \cup Recoveries
OwnerOf(w) == IF w \in Beside THEN "R" ELSE w
Gone == <<"", -1>>
Free == <<"", 0>>
Same(stored, held) == IF On("attempt_in_claim") THEN stored = held ELSE stored[1] = held[1]

Init ==
    /\ entry = <<"W", 0>>
    /\ holder = "W"
    /\ pc = [w \in Workers |-> IF w = "W" THEN "held" ELSE "start"]
    /\ value = [w \in Workers |-> IF w = "W" THEN <<"W", 0>> ELSE Free]
    /\ wrong = {}
    /\ did = <<"first">>

Goto(w, where) == pc' = [pc EXCEPT ![w] = where]
Does(w, words) == did' = <<w>> \o words

Reads(w) ==
    /\ pc[w] = "start" /\ entry # Gone
    /\ value' = [value EXCEPT ![w] = entry]
    /\ Goto(w, "claim")
    /\ Does(w, <<"reads the entry", entry>>)
    /\ UNCHANGED <<entry, holder, wrong>>

Claims(w) ==
    LET mine == <<OwnerOf(w), entry[2] + 1>>
    IN  /\ pc[w] = "claim"
        /\ IF entry # Gone /\ Same(entry, value[w])
           THEN /\ entry' = mine
                /\ holder' = w
                /\ value' = [value EXCEPT ![w] = mine]
                /\ Goto(w, "held")
                /\ wrong' = wrong \cup (IF entry = value[w] THEN {} ELSE {"STOLEN"})
                /\ Does(w, <<"claims it", mine>>)
           ELSE /\ Goto(w, "end")
                /\ Does(w, <<"claims it in vain">>)
                /\ UNCHANGED <<entry, holder, value, wrong>>

Renews(w) ==
    /\ pc[w] = "held"
    /\ IF On("heartbeat_if_same") /\ (entry = Gone \/ ~Same(entry, value[w]))
       THEN /\ Goto(w, "end")
            /\ Does(w, <<"renews it: told that it is not its own">>)
            /\ UNCHANGED <<entry, holder, value, wrong>>
       ELSE /\ entry' = value[w]
            /\ wrong' = wrong \cup (IF entry = Gone THEN {"REVIVED"} ELSE IF holder # w THEN {"SHARED"} ELSE {})
            /\ Does(w, <<"renews it">>)
            /\ UNCHANGED <<holder, pc, value>>

Forgets(w) ==
    /\ pc[w] = "held"
    /\ entry' = Gone
    /\ Goto(w, "end")
    /\ Does(w, <<"forgets it">>)
    /\ UNCHANGED <<holder, value, wrong>>

GivesBack(w) ==
    /\ Releases /\ w # "W" /\ pc[w] = "held" /\ entry # Gone
    /\ entry' = IF entry = value[w] THEN Free ELSE entry
    /\ Goto(w, "end")
    /\ Does(w, <<"gives it back">>)
    /\ UNCHANGED <<holder, value, wrong>>

Done == (\A w \in Workers : pc[w] \in {"start", "end"}) /\ UNCHANGED vars
Next ==
    \/ \E w \in Workers : Reads(w) \/ Claims(w) \/ Renews(w) \/ Forgets(w) \/ GivesBack(w)
    \/ Done
Spec == Init /\ [][Next]_vars

NotStolen == "STOLEN" \notin wrong    \* a claim succeeds though the entry has changed since it was read
NotShared == "SHARED" \notin wrong    \* a renewal is told "yours" though somebody else has claimed the entry since
NotRevived == "REVIVED" \notin wrong  \* a renewal brings back an entry that was forgotten
=============================================================================
