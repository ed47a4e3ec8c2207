import torch
from torch import nn
from torch.utils.data import SequentialSampler, TensorDataset
from transformers import Trainer, TrainingArguments

generator = torch.Generator().manual_seed(0)
x = torch.randn(400, 10, generator=generator)
y = x.sum(dim=1, keepdim=True) + 0.1 * torch.randn(400, 1, generator=generator)
train_data, eval_data = TensorDataset(x[:320], y[:320]), TensorDataset(x[320:], y[320:])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, inputs, labels):
        outputs = self.net(inputs)
        return {"loss": nn.functional.mse_loss(outputs, labels), "logits": outputs}


class InOrder(Trainer):
    def _get_train_sampler(self, *_):
        # only so that both programs see the same batches
        return SequentialSampler(self.train_dataset)


def collate(samples):
    inputs, labels = zip(*samples, strict=True)
    return {"inputs": torch.stack(inputs), "labels": torch.stack(labels)}


torch.manual_seed(0)
model = Net()
arguments = TrainingArguments(
    "output",
    num_train_epochs=5,
    per_device_train_batch_size=32,
    per_device_eval_batch_size=32,
    max_grad_norm=1.0,
    lr_scheduler_type="constant",
    eval_strategy="epoch",
    report_to=[],
    remove_unused_columns=False,
    dataloader_pin_memory=False,
)
trainer = InOrder(
    model,
    arguments,
    data_collator=collate,
    train_dataset=train_data,
    eval_dataset=eval_data,
    optimizers=(torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9), None),
)
trainer.train()
print(f"eval loss {trainer.evaluate()['eval_loss']:.6f}")
