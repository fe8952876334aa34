------------------------------ MODULE Appends -------------------------------
(***************************************************************************)
(* Appends to one open upload alone: several who append, each of whom may  *)
(* stand still at any moment; "F", who finishes the upload; and "S", a     *)
(* stray, who uploads part 1 in another way, once.                         *)
(*                                                                         *)
(* A part that was sent arrives at any later time, or never.  Of a number, *)
(* what arrived last counts.  A part is a number, and whose bytes it has.  *)
(* How a claim goes on is in Protocol.tla; here it ends all appending.     *)
(***************************************************************************)
EXTENDS Integers, Sequences

CONSTANTS
    Guards,                     \* the rules that are followed
    Appenders,
    Stray,                      \* whether there is one
    Size                        \* how many parts the object has

VARIABLES
    kept,                       \* the entry: what was acknowledged, and who appends
    session,                    \* the parts that the service has
    net,                        \* the parts under way
    procs,
    wrong,                      \* ghost: the promises that were broken
    did                         \* ghost: the last step in words; no part of the VIEW

vars == <<kept, session, net, procs, wrong, did>>
View == <<kept, session, net, procs, wrong>>

On(guard) == guard \in Guards
Nobody == ""
Range(sequence) == {sequence[i] : i \in DOMAIN sequence}

Fresh == [parts |-> <<>>, next |-> 1, skipped |-> {}, token |-> Nobody, claimed |-> FALSE]
Idle == [pc |-> "start", seen |-> Fresh, number |-> 0, offset |-> 0, listed |-> {}]

Init ==
    /\ kept = Fresh
    /\ session = {}
    /\ net = {}
    /\ procs = [p \in Appenders \cup {"F"} \cup (IF Stray THEN {"S"} ELSE {}) |-> Idle]
    /\ wrong = {}
    /\ did = <<"first">>

Goes(p, q) == procs' = [procs EXCEPT ![p] = q]
Goto(p, pc) == procs' = [procs EXCEPT ![p].pc = pc]
Does(p, words) == did' = <<p>> \o words

Append_(p) ==
    LET q == procs[p]
        takes == [kept EXCEPT !.token = p]
        skips == [takes EXCEPT !.next = @ + 1, !.skipped = @ \cup {kept.next}]
        mine == IF kept.token # Nobody /\ On("number_left_out") THEN skips ELSE takes
        more == [kept EXCEPT !.parts = Append(@, <<q.number, p>>), !.next = IF @ > q.number THEN @ ELSE q.number + 1]
    IN  \/ /\ q.pc = "start"
           /\ Goes(p, [q EXCEPT !.seen = kept, !.pc = IF kept.claimed \/ Len(kept.parts) >= Size THEN "end" ELSE "take"])
           /\ Does(p, <<"reads the entry">>)
           /\ UNCHANGED <<kept, session, net, wrong>>
        \/ /\ q.pc = "take"
           /\ IF kept # q.seen
              THEN /\ Goto(p, "start")
                   /\ Does(p, <<"takes it in vain">>)
                   /\ UNCHANGED kept
              ELSE /\ kept' = mine
                   /\ Goes(p, [q EXCEPT !.pc = "put", !.number = mine.next, !.offset = Len(mine.parts)])
                   /\ Does(p, <<"takes it from", IF kept.token = Nobody THEN "nobody" ELSE kept.token>>)
           /\ UNCHANGED <<session, net, wrong>>
        \/ /\ q.pc = "put"
           /\ net' = net \cup {<<q.number, p>>}
           /\ Goto(p, "wait")
           /\ Does(p, <<"sends part", q.number>>)
           /\ UNCHANGED <<kept, session, wrong>>
        \/ /\ q.pc = "acknowledge"
           /\ IF kept.claimed \/ (On("token_in_acknowledgement") /\ kept.token # p)
              THEN /\ Goto(p, "end")
                   /\ Does(p, <<"is told that others go on">>)
                   /\ UNCHANGED <<kept, wrong>>
              ELSE /\ kept' = more
                   /\ Goes(p, [q EXCEPT !.pc = IF q.offset + 1 >= Size THEN "give back" ELSE "put",
                                        !.number = more.next, !.offset = @ + 1])
                   /\ wrong' = wrong \cup (IF Len(kept.parts) = q.offset THEN {} ELSE {"TWICE"})
                   /\ Does(p, <<"acknowledges part", q.number>>)
           /\ UNCHANGED <<session, net>>
        \/ /\ q.pc = "give back"
           /\ kept' = IF kept.token = p THEN [kept EXCEPT !.token = Nobody] ELSE kept
           /\ Goto(p, "end")
           /\ Does(p, <<"gives its token back">>)
           /\ UNCHANGED <<session, net, wrong>>

Finish ==
    LET q == procs["F"]
        counted == {part \in session : part[1] < q.seen.next /\ part[1] \notin q.seen.skipped}
        changed == On("chain_in_completion") /\ counted # Range(q.seen.parts)
        mixed == q.listed \subseteq session /\ q.listed # Range(kept.parts)
    IN  /\ UNCHANGED <<session, net>>
        /\ \/ /\ q.pc = "start"
              /\ Goes("F", [q EXCEPT !.seen = kept, !.pc = IF kept.parts = <<>> THEN "end" ELSE "list"])
              /\ Does("F", <<"reads the entry">>)
              /\ UNCHANGED <<kept, wrong>>
           \/ /\ q.pc = "list"
              /\ Goes("F", IF changed THEN [q EXCEPT !.pc = "end"] ELSE [q EXCEPT !.pc = "claim", !.listed = counted])
              /\ Does("F", <<IF changed THEN "is told that a part has changed" ELSE "lists the parts">>)
              /\ UNCHANGED <<kept, wrong>>
           \/ /\ q.pc = "claim"
              /\ kept' = IF kept = q.seen THEN [kept EXCEPT !.claimed = TRUE] ELSE kept
              /\ Goto("F", IF kept = q.seen THEN "complete" ELSE "start")
              /\ Does("F", <<IF kept = q.seen THEN "claims it" ELSE "claims it in vain">>)
              /\ UNCHANGED wrong
           \/ /\ q.pc = "complete"
              /\ Goto("F", "end")
              /\ wrong' = wrong \cup (IF mixed THEN {"MIXED"} ELSE {})
              /\ Does("F", <<"completes it, if the service still has the parts">>)
              /\ UNCHANGED kept

Strays ==
    /\ Stray /\ procs["S"].pc = "start"
    /\ net' = net \cup {<<1, "S">>}
    /\ Goto("S", "end")
    /\ Does("S", <<"uploads part 1 in another way">>)
    /\ UNCHANGED <<kept, session, wrong>>

Arrives(part) ==
    LET whose == part[2]
        hears == whose \in Appenders /\ procs[whose].pc = "wait" /\ procs[whose].number = part[1]
        replaces == \E other \in Range(kept.parts) : other[1] = part[1] /\ other # part
    IN  /\ net' = net \ {part}
        /\ session' = {other \in session : other[1] # part[1]} \cup {part}
        /\ procs' = IF hears THEN [procs EXCEPT ![whose].pc = "acknowledge"] ELSE procs
        /\ wrong' = wrong \cup (IF ~Stray /\ replaces THEN {"OVERWRITTEN"} ELSE {})
        /\ Does("network", <<"a part arrives:", part>>)
        /\ UNCHANGED kept

Done == (\A p \in DOMAIN procs : procs[p].pc \in {"wait", "end"}) /\ UNCHANGED vars
Next ==
    \/ \E p \in Appenders : Append_(p)
    \/ Finish
    \/ Strays
    \/ \E part \in net : Arrives(part)
    \/ Done
Spec == Init /\ [][Next]_vars

NotTwice == "TWICE" \notin wrong              \* an appender is told that its bytes are kept, and others are there
NotOverwritten == "OVERWRITTEN" \notin wrong  \* an acknowledged part is another one, and there is no stray
NotMixed == "MIXED" \notin wrong              \* the object is not what was acknowledged
=============================================================================
