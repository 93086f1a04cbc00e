-- The health of an OutboxRelay. Lua 5.1, as Argo CD runs it; `obj` is the resource.
local found = {}
for _, condition in ipairs((obj.status or {}).conditions or {}) do
  found[condition.type] = condition
end
local function is(kind)
  return found[kind] ~= nil and found[kind].status == "True"
end
local function health(status, kind)
  return {status = status, message = (found[kind] or {}).message or ""}
end

if obj.metadata.deletionTimestamp ~= nil then
  return {status = "Progressing", message = "it is being deleted"}
end
if (obj.status or {}).observedGeneration ~= obj.metadata.generation then
  return {status = "Progressing", message = "the operator has not seen the last change yet"}
end
if is("Stalled") then return health("Degraded", "Stalled") end
if is("Reconciling") then return health("Progressing", "Reconciling") end
if is("Degraded") then return health("Degraded", "Degraded") end
if is("Paused") then return health("Suspended", "Paused") end
if found.Ready ~= nil and found.Ready.reason == "ScaledToZero" then
  return health("Suspended", "Ready")
end
if is("Ready") then return health("Healthy", "Ready") end
return health("Progressing", "Ready")
