"""A client of MRDS in Python, generated from schemas/proto: it takes a plan from its node to a running instance and back, and
follows the instance by EMCO's notification service.

    mrds_client.py ADDRESS CERTIFICATES PROTOS FOLDER

CERTIFICATES has ca.pem, anna.pem and anna.key. The generated code goes into FOLDER. Each step prints a line.
"""

import importlib
import pathlib
import sys
import time

import grpc
from grpc_tools import protoc

DEADLINE = 60.0
FILES = ["metadata", "cluster", "computecapability", "deploymentplan", "metainstance", "node"]


def generated(protos, folder):
    """Generates the client, and imports its modules."""
    files = [f"mrds/{name}.proto" for name in FILES] + ["emco/statusnotify.proto"]
    words = ["protoc", f"-I{protos}", f"--python_out={folder}", f"--grpc_python_out={folder}", *files]
    if protoc.main(words) != 0:
        raise SystemExit("cannot generate the client")
    sys.path.insert(0, str(folder))
    names = [file.removesuffix(".proto").replace("/", ".") for file in files]
    return {
        name.split(".")[-1]: (importlib.import_module(f"{name}_pb2"), importlib.import_module(f"{name}_pb2_grpc"))
        for name in names
    }


def eventually(what, look):
    """The first true result of a look."""
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        found = look()
        if found:
            print(what, flush=True)
            return found
        time.sleep(0.05)
    raise SystemExit(f"not within {DEADLINE} s: {what}")


class Client:
    """The stubs over one channel."""

    def __init__(self, address, certificates, modules):
        read = {name: (certificates / name).read_bytes() for name in ["ca.pem", "anna.pem", "anna.key"]}
        credentials = grpc.ssl_channel_credentials(read["ca.pem"], read["anna.key"], read["anna.pem"])
        options = [("grpc.ssl_target_name_override", "localhost")]
        channel = grpc.secure_channel(address, credentials, options)
        self.pb = {name: module for name, (module, _) in modules.items()}
        self.clusters = modules["cluster"][1].ClustersStub(channel)
        self.capabilities = modules["computecapability"][1].ComputeCapabilitiesStub(channel)
        self.nodes = modules["node"][1].NodesStub(channel)
        self.plans = modules["deploymentplan"][1].DeploymentPlansStub(channel)
        self.instances = modules["metainstance"][1].MetaInstancesStub(channel)
        self.notify = modules["statusnotify"][1].StatusNotifyStub(channel)

    def make_inventory(self):
        """A cluster, a capability and an allocated node."""
        self.clusters.Create(self.pb["cluster"].CreateClusterRequest(name="north"))
        capability = self.pb["computecapability"].CreateComputeCapabilityRequest(name="v100", type="GPU", score=70)
        record = self.capabilities.Create(capability).record
        pb = self.pb["computecapability"]
        active = pb.ComputeCapabilityStatus(state=pb.ComputeCapabilityState_ACTIVE)
        request = pb.UpdateComputeCapabilityStatusRequest(metadata=record.metadata, status=active)
        assert self.capabilities.UpdateStatus(request).record.metadata.version == record.metadata.version + 1
        pb = self.pb["node"]
        resources = pb.Resources(cores=4, memory=8)
        request = pb.CreateNodeRequest(
            name="worker",
            update_domain="d1",
            total_resources=resources,
            system_reserved_resources=pb.Resources(cores=1),
            capability_ids=["v100"],
        )
        node = self.nodes.Create(request).record
        for state in [pb.NodeState_ALLOCATING, pb.NodeState_ALLOCATED]:
            status = pb.NodeStatus(state=state)
            request = pb.UpdateNodeStatusRequest(metadata=node.metadata, status=status, cluster_id="north")
            node = self.nodes.UpdateStatus(request).record
        assert node.remaining_resources.cores == 3, node

    def make_plan(self):
        """A plan that needs the capability."""
        pb = self.pb["deploymentplan"]
        matcher = pb.MatchingComputeCapability(
            capability_type="GPU", comparator=pb.Comparator_GTE, capability_names=["v100"]
        )
        application = pb.Application(payload_name="main", resources=pb.ApplicationResources(cores=2, memory=1))
        request = pb.CreateDeploymentPlanRequest(
            name="web",
            namespace="demo",
            service_name="web",
            matching_compute_capabilities=[matcher],
            applications=[application],
        )
        self.plans.Create(request)

    def deploy(self, name, count):
        """Adds a deployment."""
        pb = self.pb["deploymentplan"]
        plan = self.plans.GetByName(pb.GetDeploymentPlanByNameRequest(name="web")).record
        payload = pb.PayloadCoordinates(payload_name="main", coordinates={"version": name})
        request = pb.AddDeploymentRequest(
            metadata=plan.metadata, deployment_id=name, payload_coordinates=[payload], instance_count=count
        )
        self.plans.AddDeployment(request)

    def found(self):
        """The instances of the plan."""
        request = self.pb["metainstance"].ListMetaInstanceRequest(deployment_plan_id_in=["web"])
        return self.instances.List(request).records

    def approve(self, kind):
        """Approves the operation of this type once it waits for it."""
        pb = self.pb["metainstance"]
        waits = pb.OperationState_PENDING_APPROVAL

        def pending():
            for instance in self.found():
                for operation in instance.operations:
                    if operation.type == kind and operation.status.state == waits:
                        return instance, operation
            return None

        instance, operation = eventually(f"{pb.OperationType.Name(kind)} waits for approval", pending)
        status = pb.OperationStatus(state=pb.OperationState_APPROVED)
        request = pb.UpdateOperationStatusRequest(
            metadata=instance.metadata, operation_id=operation.id, status=status
        )
        self.instances.UpdateOperationStatus(request)

    def runs(self):
        """The instance, if it runs."""
        running = self.pb["metainstance"].RuntimeState_RUNNING
        places = [(one, place) for one in self.found() for place in one.runtime_instances]
        return next((one for one, place in places if place.is_active and place.status.state == running), None)

    def without_node(self, name):
        """The instance of this name, once the planner has found no node for it."""
        tried = [one for one in self.found() if one.name == name and one.metadata.version > 0]
        return next((one for one in tried if not one.runtime_instances), None)

    def follow(self, instance):
        """The first notification of the instance's deployment that is READY."""
        pb = self.pb["statusnotify"]
        key = pb.DigKey(
            project="plant", compositeApp="shop", compositeAppVersion="v1", deploymentIntentGroup=instance.metadata.id
        )
        registration = pb.StatusRegistration(clientId="mrds", digKey=key, statusType=pb.READY, output=pb.ALL)
        stream = self.notify.StatusRegister(registration)
        ready = next(message for message in stream if message.statusValue == pb.READY)
        assert ready.details[0].app.clusters[0].cluster == "worker", ready
        stream.cancel()


def main():
    """Goes through the life of a plan."""
    address, certificates, protos, folder = sys.argv[1:]
    modules = generated(protos, pathlib.Path(folder))
    client = Client(address, pathlib.Path(certificates), modules)
    client.make_inventory()
    client.make_plan()
    client.deploy("r1", 1)
    pb = client.pb["metainstance"]
    client.approve(pb.OperationType_CREATE)
    client.follow(eventually("the instance runs", client.runs))
    made = client.instances.Create(
        pb.CreateMetaInstanceRequest(name="mine", deployment_plan_id="web", deployment_id="r1")
    ).record
    waiting = eventually("it waits for a node", lambda: client.without_node(made.name))
    client.instances.Delete(pb.DeleteMetaInstanceRequest(metadata=waiting.metadata))
    client.deploy("r2", 0)
    client.approve(pb.OperationType_DELETE)
    eventually("the instance is gone", lambda: not client.found())
    client.instances.Delete(pb.DeleteMetaInstanceRequest(metadata=made.metadata))
    try:
        client.instances.GetByID(pb.GetMetaInstanceByIDRequest(id=made.metadata.id))
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.NOT_FOUND, error
        print("done", flush=True)


if __name__ == "__main__":
    main()
